"""The HTTP routes of GPU units: list, create, get, update, delete, stop and start."""

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    DuplicateRequestID,
    Gone,
    LifetimeEnded,
    NoStock,
    NotFound,
    OperationReused,
    Overloaded,
    QuotaExceeded,
    StorageInUse,
    TooManyWaiting,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import (
    SMALL_MAX_BODY_BYTES,
    APIRequest,
    APIResponse,
    NoQuery,
    RouteGroup,
    Scope,
)
from gpu_runtime.runtime_api.units.requests import CreateUnit, ExtendUnit, ListUnits, UnitQuery, UpdateUnit
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.unit_admission import admit_unit
from gpu_runtime.runtime_api.units.view import UnitView, unit_view

UNITS = RouteGroup[UnitService]("GPU units", Scope.RUNTIME)

UNITS_PATH = "/api/v1/gpu-units"
UNIT_PATH = UNITS_PATH + "/{name}"

CREATE_FAULTS = (
    NoStock,
    StorageInUse,
    OperationReused,
    Gone,
    AlreadyExists,
    DuplicateRequestID,
    BeingDeleted,
    QuotaExceeded,
    AdmissionDenied,
    WriteConflict,
    Overloaded,
    TooManyWaiting,
)

_WEB_SERVER = {
    "operationID": "unit-demo-001",
    "name": "demo-instance",
    "namespace": "runtime-instance",
    "specName": "g1.1",
    "image": "python:3.12",
    "access": {"primaryPort": "http", "scheme": "http"},
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "ports": [{"name": "http", "port": 8080}],
    },
}
_WITH_STORAGE = _WEB_SERVER | {
    "operationID": "unit-demo-002",
    "name": "demo-mounted",
    "storageMounts": [{"name": "model-cache", "mountPath": "/workspace/cache"}],
}
_FUNCTION_SOURCE = """\
from gpu_runtime.framework import handler, serve

@handler
def run(request):
    return {"n": request.payload["n"] * 2}

serve()
"""
_FUNCTION = {
    "operationID": "unit-demo-003",
    "name": "demo-function",
    "specName": "g1.1",
    "image": "gpu-runtime:local",
    "template": {"command": ["python", "-c"], "args": [_FUNCTION_SOURCE]},
    "serverless": {"enabled": True, "requestID": "demo-function", "maxWorkers": 4},
}
_MOVED_MOUNT = {"storageMounts": [{"name": "model-cache", "mountPath": "/workspace/data"}]}


@UNITS.route("GET", UNITS_PATH, {200: list[UnitView]})
async def list_units(units: UnitService, request: APIRequest[None, ListUnits]) -> APIResponse:
    """List units.

    Lists active units, sorted by namespace and name. If units are created or deleted between two pages, no other
    unit is repeated or skipped. A unit that another replica created or changed may appear with a short delay.
    """
    found, continuation = units.list(request.query)
    return APIResponse(200, [unit_view(unit) for unit in found], continuation)


@UNITS.route(
    "POST",
    UNITS_PATH,
    {201: UnitView, 200: UnitView},
    faults=CREATE_FAULTS,
    examples={"A web server": _WEB_SERVER, "With a storage": _WITH_STORAGE, "A function": _FUNCTION},
)
async def create_unit(units: UnitService, request: APIRequest[CreateUnit, NoQuery]) -> APIResponse:
    """Create a unit from stock.

    Turns one Ready stock unit of the same specName into an active unit. The active unit keeps the memory and GPUs
    of the stock. 201: this request created the unit. 200: an earlier request with the same operationID and content
    created the unit, which the response contains. 409 no_stock: nothing was created, and the same request may
    succeed later. 429: the caller has too many create requests in flight, or too many operations that wait for
    stock. After a timeout or a 503, send the same request again.
    """
    unit, first = await units.handoff.create(
        admit_unit(request.body, units.namespaces, units.pod_policy), request.caller
    )
    return APIResponse(201 if first else 200, unit_view(unit))


@UNITS.route("GET", UNIT_PATH, {200: UnitView}, faults=(NotFound,))
async def get_unit(units: UnitService, request: APIRequest[None, UnitQuery]) -> APIResponse:
    """Get a unit.

    Every replica returns a unit as soon as the create request has been answered.
    """
    return APIResponse(200, unit_view(await units.get(request.query.namespace, request.path["name"])))


@UNITS.route(
    "PUT",
    UNIT_PATH,
    {200: UnitView},
    faults=(
        NotFound,
        StorageInUse,
        DuplicateRequestID,
        BeingDeleted,
        LifetimeEnded,
        QuotaExceeded,
        AdmissionDenied,
        WriteConflict,
    ),
    examples={"Another image": {"image": "python:3.13"}, "Another mount path": _MOVED_MOUNT},
)
async def update_unit(units: UnitService, request: APIRequest[UpdateUnit, UnitQuery]) -> APIResponse:
    """Update a unit.

    Changes only the fields that the body contains. Each of them is replaced as a whole. If nothing changes, the
    unit is not written. A change of image, template, probes, storageMounts or serverless replaces the unit's pod, and
    so does a change of the primary port that a probe checks. A change of a lifetime does not. A lifetime can be set,
    raised and removed, but not lowered. 400: the field cannot change, for example because the stock reserved it.
    """
    updated = await units.update(request.query.namespace, request.path["name"], request.body)
    return APIResponse(200, unit_view(updated))


@UNITS.route("DELETE", UNIT_PATH, {204: None}, faults=(NotFound, AdmissionDenied))
async def delete_unit(units: UnitService, request: APIRequest[None, UnitQuery]) -> APIResponse:
    """Delete a unit.

    Deletes the unit with its pod and Service. Its storages stay. The stock that it was created from is not
    restored.
    """
    await units.delete(request.query.namespace, request.path["name"])
    return APIResponse(204)


@UNITS.route(
    "POST", UNIT_PATH + "/stop", {200: UnitView}, faults=(NotFound, BeingDeleted, AdmissionDenied, WriteConflict)
)
async def stop_unit(units: UnitService, request: APIRequest[None, UnitQuery]) -> APIResponse:
    """Stop a unit.

    Removes the unit's pod. The unit and its storages stay. A repeated request changes nothing.
    """
    return APIResponse(200, unit_view(await units.stop(request.query.namespace, request.path["name"])))


@UNITS.route(
    "POST", UNIT_PATH + "/start", {200: UnitView}, faults=(NotFound, BeingDeleted, AdmissionDenied, WriteConflict)
)
async def start_unit(units: UnitService, request: APIRequest[None, UnitQuery]) -> APIResponse:
    """Start a unit.

    Creates the pod of a stopped unit again. A repeated request changes nothing.
    """
    return APIResponse(200, unit_view(await units.start(request.query.namespace, request.path["name"])))


@UNITS.route(
    "POST",
    UNIT_PATH + "/extend",
    {200: UnitView},
    faults=(NotFound, BeingDeleted, LifetimeEnded, AdmissionDenied, WriteConflict),
    examples={"Until a time": {"until": "2030-01-31T12:00:00Z"}},
    max_body_bytes=SMALL_MAX_BODY_BYTES,
)
async def extend_unit(units: UnitService, request: APIRequest[ExtendUnit, UnitQuery]) -> APIResponse:
    """Extend a unit.

    Postpones the stop of a unit that has stopUnlessExtendedSeconds. A repeated request, or a time that is earlier than
    the current one, changes nothing. 409 lifetime_ended: the platform has already begun to stop the unit.
    """
    extended = await units.extend(request.query.namespace, request.path["name"], request.body.until)
    return APIResponse(200, unit_view(extended))
