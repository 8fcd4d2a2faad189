"""A caller sees what was asked of a storage, what is true of it, and who holds it."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.runtime_api.storages.view import phase_of, storage_view

SPEC = {"size": "20Gi", "storageClassName": "fast"}


def storage(spec: Any = (), status: Any = (), **metadata: Any) -> GPUStorage:
    about = {"name": "data", "namespace": "runtime-instance", "generation": 1, **metadata}
    return msgspec.convert({"metadata": about, "spec": SPEC | dict(spec), "status": dict(status)}, GPUStorage)


def seen(spec: Any = (), status: Any = (), **metadata: Any) -> dict[str, Any]:
    found = msgspec.json.decode(msgspec.json.encode(storage_view(storage(spec, status, **metadata))))
    assert isinstance(found, dict)
    return found


def condition(status: str, reason: str) -> dict[str, Any]:
    said = {"reason": reason, "message": "so it is", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    return {"type": "Ready", "status": status, "observedGeneration": 1, **said}


def test_unreconciled_storage_is_pending() -> None:
    assert seen() == {
        "name": "data",
        "namespace": "runtime-instance",
        "size": "20Gi",
        "storageClassName": "fast",
        "phase": "Pending",
        "ready": False,
        "reason": "",
        "message": "",
        "mountable": False,
        "conditions": [],
        "observedGeneration": 0,
        "generation": 1,
        "deleting": False,
    }


def test_bound_storage_view_has_capacity_and_mounting_unit() -> None:
    status = {
        "phase": "Ready",
        "claimName": "data",
        "capacity": "20Gi",
        "mountedBy": "an-earlier-one",
        "observedGeneration": 1,
        "conditions": [condition("True", "StorageReady")],
    }
    found = seen({"attachedTo": {"unit": "web"}}, status, creationTimestamp="2026-01-01T00:00:00Z")
    assert found["mountedBy"] == "web", "what decides, and not what follows it"
    told = {name: found[name] for name in ("phase", "ready", "reason", "message", "mountable", "capacity", "claimName")}
    assert told == {
        "phase": "Ready",
        "ready": True,
        "reason": "StorageReady",
        "message": "so it is",
        "mountable": True,
        "capacity": "20Gi",
        "claimName": "data",
    }
    assert (found["createdAt"], found["observedGeneration"]) == ("2026-01-01T00:00:00Z", 1)
    assert [each["type"] for each in found["conditions"]] == ["Ready"]


@pytest.mark.parametrize(
    ("phase", "reason", "mountable"),
    [
        ("Pending", "ClaimPending", False),
        ("Pending", "WaitForFirstConsumer", True),
        ("Ready", "ResizePending", True),
        ("Failed", "ClaimLost", False),
    ],
)
def test_mountable_of_a_storage_that_is_not_ready(phase: str, reason: str, mountable: bool) -> None:
    found = seen(status={"phase": phase, "conditions": [condition("False", reason)]})
    assert (found["ready"], found["reason"], found["mountable"]) == (False, reason, mountable)


def test_terminating_storage_view_is_deleting() -> None:
    assert seen(deletionTimestamp="2026-01-01T00:00:00Z")["deleting"] is True


def test_unknown_phase_is_shown_as_pending() -> None:
    assert phase_of(storage(status={"phase": "Migrating"})) == "Pending"
