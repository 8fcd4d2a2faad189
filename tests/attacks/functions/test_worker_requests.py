"""A caller without the scope `worker` tries to create a worker of another function through the HTTP API."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.errors import Invalid
from gpu_runtime.kube.meta import ObjectMeta
from gpu_runtime.runtime_api.openapi_routes import documented_routes
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.requests import CreateUnit, UpdateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit, apply_update

WORKER_OF_VICTIM = {"enabled": True, "requestID": "victim", "workerOf": "victim"}
SPECS: dict[str, Any] = {
    "a plain unit": {"specName": "g1.1", "image": "thief"},
    "a function": {"specName": "g1.1", "image": "thief", "serverless": {"enabled": True, "requestID": "own"}},
}


def test_request_for_a_unit_with_worker_of_is_rejected() -> None:
    body = {"operationID": "steal", "name": "victim-w0", "specName": "g1.1", "image": "thief"}
    request = msgspec.convert(body | {"serverless": WORKER_OF_VICTIM}, CreateUnit)
    with pytest.raises(
        Invalid, match=r"^serverless\.workerOf: is set, but only the activator creates workers; omit it$"
    ):
        admit_unit(request, APINamespaceSettings())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_update_does_not_turn_a_unit_into_a_worker(spec: Any) -> None:
    """The schema cannot prevent this change of a unit without `serverless`, because nothing is changed but added."""
    unit = GPUUnit(metadata=ObjectMeta(name="victim-w0"), spec=msgspec.convert(spec, GPUUnitSpec))
    with pytest.raises(Invalid, match=r"serverless\.workerOf: cannot be changed from ''"):
        apply_update(unit, msgspec.convert({"serverless": WORKER_OF_VICTIM}, UpdateUnit))


def test_only_the_routes_of_the_activator_have_the_scope_worker() -> None:
    assert [route.path for route in documented_routes() if route.scope == "worker"] == [
        "/api/v1/workers",
        "/api/v1/operator/stock-returns",
    ]
