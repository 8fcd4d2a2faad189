"""A caller sees what was asked of a unit, what is true of it, and where it came from."""

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


def seen(spec: Any = (), status: Any = (), **metadata: Any) -> dict[str, Any]:
    about = {"name": "web", "namespace": "runtime-instance", "generation": 1, **metadata}
    unit = msgspec.convert({"metadata": about, "spec": PLAIN | dict(spec), "status": dict(status)}, GPUUnit)
    found = msgspec.json.decode(msgspec.json.encode(unit_view(unit)))
    assert isinstance(found, dict)
    return found


def test_unreconciled_unit_is_progressing() -> None:
    assert seen() == {
        "name": "web",
        "namespace": "runtime-instance",
        "specName": "g1.1",
        "image": "python",
        "memory": "",
        "gpu": 0,
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
    found = seen(status=status, generation=4)
    assert {name: found[name] for name in status} == status
    assert (found["ready"], found["reason"], found["message"]) == (True, "UnitReady", "the unit serves")
    assert found["generation"] == 4


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
    found = seen(spec)
    assert {name: found[name] for name in spec} == spec


def test_source_stock_is_read_from_annotations() -> None:
    annotations = {
        f"{GROUP}/operation-id": "unit-1",
        f"{GROUP}/source-stock-name": "stock-1",
        f"{GROUP}/source-stock-namespace": "runtime-stock",
        f"{GROUP}/source-stock-uid": "u-1",
    }
    found = seen(annotations=annotations, creationTimestamp="2026-01-01T00:00:00Z")
    assert found["operationID"] == "unit-1"
    assert found["sourceStock"] == {"name": "stock-1", "namespace": "runtime-stock", "uid": "u-1"}
    assert found["createdAt"] == "2026-01-01T00:00:00Z"


def test_terminating_unit_view_is_deleting() -> None:
    assert seen(deletionTimestamp="2026-01-01T00:00:00Z")["deleting"] is True


@pytest.mark.parametrize(("phase", "shown"), [("Empty", "Empty"), ("Failed", "Failed"), ("Resting", "Progressing")])
def test_unknown_unit_phase_is_shown_as_progressing(phase: str, shown: str) -> None:
    assert seen(status={"phase": phase})["phase"] == shown


def test_a_condition_that_is_neither_true_nor_false_is_unknown() -> None:
    (condition,) = seen(status={"conditions": [{"type": "Ready", "status": "Maybe"}]})["conditions"]
    assert condition == {"type": "Ready", "status": "Unknown"}
