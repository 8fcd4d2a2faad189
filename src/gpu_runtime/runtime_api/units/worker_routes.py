"""The HTTP route with which the activator creates the workers of functions."""

from typing import Any

from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.routes import CREATE_FAULTS
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.unit_admission import admit_worker
from gpu_runtime.runtime_api.units.view import UnitView, unit_view

WORKERS = RouteGroup[UnitService]("Workers", Scope.WORKER)

WORKERS_PATH = "/api/v1/workers"

_WORKER: dict[str, Any] = {
    "operationID": "worker-demo-w0-5f2c9e1ab3d04467",
    "name": "demo-w0",
    "specName": "g1.1",
    "image": "gpu-runtime:local",
    "serverless": {"enabled": True, "requestID": "demo", "workerOf": "demo"},
}


@WORKERS.route(
    "POST", WORKERS_PATH, {201: UnitView, 200: UnitView}, faults=CREATE_FAULTS, examples={"A worker": _WORKER}
)
async def create_worker(units: UnitService, request: APIRequest[CreateUnit, NoQuery]) -> APIResponse:
    """Create a worker from stock.

    Only the activator sends this request. It is the only request that accepts serverless.workerOf. The responses are
    the responses of the request that creates a unit.
    """
    worker = admit_worker(request.body, units.namespaces, units.pod_policy)
    unit, first = await units.handoff.create(worker, request.caller)
    return APIResponse(201 if first else 200, unit_view(unit))
