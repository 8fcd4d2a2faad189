"""The storage view shows the spec, the status and the attached unit of a storage."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.runtime_api.storages.view import phase_of, storage_view

SPEC = {"size": "20Gi", "storageClassName": "fast"}


def storage(spec: Any = (), status: Any = (), **metadata: Any) -> GPUStorage:
    document = {"name": "data", "namespace": "runtime-instance", "generation": 1, **metadata}
    return msgspec.convert({"metadata": document, "spec": SPEC | dict(spec), "status": dict(status)}, GPUStorage)


def view_of(spec: Any = (), status: Any = (), **metadata: Any) -> dict[str, Any]:
    view = msgspec.json.decode(msgspec.json.encode(storage_view(storage(spec, status, **metadata))))
    assert isinstance(view, dict)
    return view


def condition(status: str, reason: str) -> dict[str, Any]:
    details = {"reason": reason, "message": "the reason in words", "lastTransitionTime": "2026-01-01T00:00:09Z"}
    return {"type": "Ready", "status": status, "observedGeneration": 1, **details}


def test_unreconciled_storage_is_pending() -> None:
    assert view_of() == {
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
    view = view_of({"attachedTo": {"unit": "web"}}, status, creationTimestamp="2026-01-01T00:00:00Z")
    assert view["mountedBy"] == "web", "mountedBy must come from the spec, not from the status"
    shown = {name: view[name] for name in ("phase", "ready", "reason", "message", "mountable", "capacity", "claimName")}
    assert shown == {
        "phase": "Ready",
        "ready": True,
        "reason": "StorageReady",
        "message": "the reason in words",
        "mountable": True,
        "capacity": "20Gi",
        "claimName": "data",
    }
    assert (view["createdAt"], view["observedGeneration"]) == ("2026-01-01T00:00:00Z", 1)
    assert [each["type"] for each in view["conditions"]] == ["Ready"]


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
    view = view_of(status={"phase": phase, "conditions": [condition("False", reason)]})
    assert (view["ready"], view["reason"], view["mountable"]) == (False, reason, mountable)


def test_terminating_storage_view_is_deleting() -> None:
    assert view_of(deletionTimestamp="2026-01-01T00:00:00Z")["deleting"] is True


def test_unknown_phase_is_shown_as_pending() -> None:
    assert phase_of(storage(status={"phase": "Migrating"})) == "Pending"
