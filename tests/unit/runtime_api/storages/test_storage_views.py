"""A caller sees what was asked of a storage, what is true of it, and who holds it."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.runtime_api.storages.view import phase_of, view

SPEC = {"size": "20Gi", "storageClassName": "fast"}


def storage(spec: Any = (), status: Any = (), **metadata: Any) -> GPUStorage:
    about = {"name": "data", "namespace": "runtime-instance", "generation": 1, **metadata}
    return msgspec.convert({"metadata": about, "spec": SPEC | dict(spec), "status": dict(status)}, GPUStorage)


def seen(spec: Any = (), status: Any = (), **metadata: Any) -> dict[str, Any]:
    found = msgspec.json.decode(msgspec.json.encode(view(storage(spec, status, **metadata))))
    assert isinstance(found, dict)
    return found


def condition(status: str, reason: str) -> dict[str, Any]:
    said = {"reason": reason, "message": "so it is", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    return {"type": "Ready", "status": status, "observedGeneration": 1, **said}


def test_a_storage_that_nobody_has_looked_at_is_pending() -> None:
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


def test_a_storage_with_a_volume_says_how_much_it_holds_and_who_mounts_it() -> None:
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
def test_what_can_be_mounted_although_it_is_not_ready(phase: str, reason: str, mountable: bool) -> None:
    found = seen(status={"phase": phase, "conditions": [condition("False", reason)]})
    assert (found["ready"], found["reason"], found["mountable"]) == (False, reason, mountable)


def test_a_storage_that_is_being_deleted_says_so() -> None:
    assert seen(deletionTimestamp="2026-01-01T00:00:00Z")["deleting"] is True


def test_a_phase_of_a_later_version_is_pending() -> None:
    assert phase_of(storage(status={"phase": "Migrating"})) == "Pending"
