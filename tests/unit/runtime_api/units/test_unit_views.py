"""The unit view shows the spec, the status and the source stock of a unit."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import GROUP
from gpu_runtime.runtime_api.units.view import unit_view

PLAIN = {"specName": "g1.1", "image": "python"}
READY = {
    "type": "Ready",
    "status": "True",
    "reason": "UnitReady",
    "message": "the unit serves",
    "lastTransitionTime": "2026-01-01T00:00:09Z",
    "observedGeneration": 3,
}


def view_of(spec: Any = (), status: Any = (), **metadata: Any) -> dict[str, Any]:
    document = {"name": "web", "namespace": "runtime-instance", "generation": 1, **metadata}
    unit = msgspec.convert({"metadata": document, "spec": PLAIN | dict(spec), "status": dict(status)}, GPUUnit)
    view = msgspec.json.decode(msgspec.json.encode(unit_view(unit)))
    assert isinstance(view, dict)
    return view


def test_unreconciled_unit_is_progressing() -> None:
    assert view_of() == {
        "name": "web",
        "namespace": "runtime-instance",
        "specName": "g1.1",
        "image": "python",
        "memory": "",
        "gpu": 0,
        "cpu": "",
        "cpuLimit": "",
        "ephemeralStorage": "",
        "template": {},
        "storageMounts": [],
        "running": True,
        "phase": "Progressing",
        "ready": False,
        "reason": "",
        "message": "",
        "readyReplicas": 0,
        "conditions": [],
        "observedGeneration": 0,
        "generation": 1,
        "uid": "",
        "deleting": False,
    }


def test_ready_unit_view_has_its_access_url() -> None:
    status = {
        "phase": "Ready",
        "readyReplicas": 1,
        "observedGeneration": 3,
        "serviceName": "web",
        "accessURL": "http://web.runtime-instance.svc:8080",
        "conditions": [{"type": "Other", "status": "False"}, READY],
    }
    view = view_of(status=status, generation=4)
    assert {name: view[name] for name in status} == status
    assert (view["ready"], view["reason"], view["message"]) == (True, "UnitReady", "the unit serves")
    assert view["generation"] == 4


def test_unit_view_shows_the_spec_unchanged() -> None:
    spec = {
        "memory": "1Gi",
        "gpu": 2,
        "template": {"command": ["python"], "ports": [{"name": "http", "port": 80}]},
        "access": {"primaryPort": "http", "scheme": "https"},
        "storageMounts": [{"name": "data", "mountPath": "/data", "readOnly": True}],
        "serverless": {"enabled": True, "requestID": "f", "maxWorkers": 3},
        "running": False,
    }
    view = view_of(spec)
    assert {name: view[name] for name in spec} == spec


def test_source_stock_is_read_from_annotations() -> None:
    annotations = {
        f"{GROUP}/operation-id": "unit-1",
        f"{GROUP}/source-stock-name": "stock-1",
        f"{GROUP}/source-stock-namespace": "runtime-stock",
        f"{GROUP}/source-stock-uid": "u-1",
    }
    view = view_of(annotations=annotations, creationTimestamp="2026-01-01T00:00:00Z")
    assert view["operationID"] == "unit-1"
    assert view["sourceStock"] == {
        "grade": "reserved",
        "name": "stock-1",
        "namespace": "runtime-stock",
        "uid": "u-1",
    }
    assert view["createdAt"] == "2026-01-01T00:00:00Z"


def test_terminating_unit_view_is_deleting() -> None:
    assert view_of(deletionTimestamp="2026-01-01T00:00:00Z")["deleting"] is True


@pytest.mark.parametrize(("phase", "shown"), [("Empty", "Empty"), ("Failed", "Failed"), ("Resting", "Progressing")])
def test_unknown_unit_phase_is_shown_as_progressing(phase: str, shown: str) -> None:
    assert view_of(status={"phase": phase})["phase"] == shown


def test_invalid_condition_status_is_shown_as_unknown() -> None:
    (condition,) = view_of(status={"conditions": [{"type": "Ready", "status": "Maybe"}]})["conditions"]
    assert condition == {"type": "Ready", "status": "Unknown"}
