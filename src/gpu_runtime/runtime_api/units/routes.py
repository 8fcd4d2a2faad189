"""The HTTP routes of GPU units: list, create, get, update, delete, stop and start."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    AdmissionDenied,
    AlreadyExists,
    BeingDeleted,
    Gone,
    Invalid,
    NoStock,
    NotFound,
    OperationReused,
    QuotaExceeded,
    StorageInUse,
    Unavailable,
    WriteConflict,
)
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route, RouteHandler, Scope
from gpu_runtime.runtime_api.units.requests import CreateUnit, ListUnits, UnitQuery, UpdateUnit
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.view import UnitView, unit_view

UNITS_PATH = "/api/v1/gpu-units"
UNIT_PATH = UNITS_PATH + "/{name}"
TAG = "GPU units"

UnitAPIRequest = APIRequest[None, UnitQuery]


def routes(service: UnitService) -> Sequence[Route]:
    handle = _UnitHandlers(service)
    return (
        _list(handle),
        _create(handle),
        _get(handle),
        _update(handle),
        _delete(handle),
        _start_stop_route(
            "stop", "Stop a unit", "Removes the unit's pod. The unit and its storages stay.", handle.stop
        ),
        _start_stop_route("start", "Start a unit", "Creates the pod of a stopped unit again.", handle.start),
    )


class _UnitHandlers:
    """Calls the unit service and converts units to views."""

    def __init__(self, service: UnitService) -> None:
        self._units = service

    async def list(self, request: APIRequest[None, ListUnits]) -> APIResponse:
        units, continuation = self._units.list(request.query)
        return APIResponse(200, [unit_view(unit) for unit in units], continuation)

    async def create(self, request: APIRequest[CreateUnit, Any]) -> APIResponse:
        unit, first = await self._units.create(request.body)
        return APIResponse(201 if first else 200, unit_view(unit))

    async def get(self, request: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.get(request.query.namespace, request.path["name"])))

    async def update(self, request: APIRequest[UpdateUnit, UnitQuery]) -> APIResponse:
        return APIResponse(
            200, unit_view(await self._units.update(request.query.namespace, request.path["name"], request.body))
        )

    async def delete(self, request: UnitAPIRequest) -> APIResponse:
        await self._units.delete(request.query.namespace, request.path["name"])
        return APIResponse(204)

    async def stop(self, request: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.stop(request.query.namespace, request.path["name"])))

    async def start(self, request: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.start(request.query.namespace, request.path["name"])))


def _list(handle: _UnitHandlers) -> Route:
    return Route(
        "GET",
        UNITS_PATH,
        "listUnits",
        "List units",
        handle.list,
        responses={200: list[UnitView]},
        faults=(Invalid, Unavailable),
        scope=Scope.RUNTIME,
        query=ListUnits,
        description=(
            "Lists active units, sorted by namespace and name. If units are created or deleted between two pages, no"
            " other unit is repeated or skipped. A unit that another replica created or changed may appear with a short"
            " delay."
        ),
        tag=TAG,
    )


def _create(handle: _UnitHandlers) -> Route:
    return Route(
        "POST",
        UNITS_PATH,
        "createUnit",
        "Create a unit from stock",
        handle.create,
        responses={201: UnitView, 200: UnitView},
        faults=(
            *(Invalid, NoStock, StorageInUse, OperationReused, Gone, Unavailable),
            *(AlreadyExists, BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict),
        ),
        scope=Scope.RUNTIME,
        body=CreateUnit,
        description=(
            "Turns one Ready stock unit of the same specName into an active unit. The active unit keeps the memory"
            " and GPUs of the stock. 201: this request created the unit. 200: an earlier request with the same"
            " operationID and content created the unit, which the response contains. 409 no_stock: nothing was"
            " created, and the same request may succeed later. After a timeout or a 503, send the same request again."
        ),
        examples={"A web server": _WEB_SERVER, "With a storage": _WITH_STORAGE, "A function": _FUNCTION},
        tag=TAG,
    )


def _get(handle: _UnitHandlers) -> Route:
    return Route(
        "GET",
        UNIT_PATH,
        "getUnit",
        "Get a unit",
        handle.get,
        responses={200: UnitView},
        faults=(Invalid, NotFound, Unavailable),
        scope=Scope.RUNTIME,
        query=UnitQuery,
        description="Every replica returns a unit as soon as the create request has been answered.",
        tag=TAG,
    )


def _update(handle: _UnitHandlers) -> Route:
    return Route(
        "PUT",
        UNIT_PATH,
        "updateUnit",
        "Update a unit",
        handle.update,
        responses={200: UnitView},
        faults=(
            *(Invalid, NotFound, StorageInUse, Unavailable),
            *(BeingDeleted, QuotaExceeded, AdmissionDenied, WriteConflict),
        ),
        scope=Scope.RUNTIME,
        body=UpdateUnit,
        query=UnitQuery,
        description=(
            "Changes only the fields that the body contains. Each of them is replaced as a whole. If nothing changes,"
            " the unit is not written. A change of the container replaces the unit's pod."
        ),
        examples={"Another image": {"image": "python:3.13"}, "Another mount path": _MOVED_MOUNT},
        tag=TAG,
    )


def _delete(handle: _UnitHandlers) -> Route:
    return Route(
        "DELETE",
        UNIT_PATH,
        "deleteUnit",
        "Delete a unit",
        handle.delete,
        responses={204: None},
        faults=(Invalid, NotFound, AdmissionDenied, Unavailable),
        scope=Scope.RUNTIME,
        query=UnitQuery,
        description=(
            "Deletes the unit with its pod and Service. Its storages stay. The stock that it was created from is not"
            " restored."
        ),
        tag=TAG,
    )


def _start_stop_route(verb: str, summary: str, effect: str, handler: RouteHandler) -> Route:
    return Route(
        "POST",
        f"{UNIT_PATH}/{verb}",
        f"{verb}Unit",
        summary,
        handler,
        responses={200: UnitView},
        faults=(Invalid, NotFound, BeingDeleted, AdmissionDenied, WriteConflict, Unavailable),
        scope=Scope.RUNTIME,
        query=UnitQuery,
        description=f"{effect} A repeated request changes nothing.",
        tag=TAG,
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
