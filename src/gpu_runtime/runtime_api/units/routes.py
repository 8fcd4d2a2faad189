"""The routes of units."""

from collections.abc import Sequence
from typing import Any

from gpu_runtime.contract.errors import (
    Conflict,
    Gone,
    Invalid,
    NoStock,
    NotFound,
    OperationReused,
    StorageInUse,
    Unavailable,
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
        _start_stop_route("stop", "Stop a unit", "Takes the unit's pod away and keeps everything else.", handle.stop),
        _start_stop_route("start", "Start a unit", "Gives a stopped unit its pod again.", handle.start),
    )


class _UnitHandlers:
    """From calls to the service, and from units to views."""

    def __init__(self, service: UnitService) -> None:
        self._units = service

    async def list(self, call: APIRequest[None, ListUnits]) -> APIResponse:
        found, continuation = self._units.list(call.query)
        return APIResponse(200, [unit_view(unit) for unit in found], continuation)

    async def create(self, call: APIRequest[CreateUnit, Any]) -> APIResponse:
        unit, first = await self._units.create(call.body)
        return APIResponse(201 if first else 200, unit_view(unit))

    async def get(self, call: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.get(call.query.namespace, call.path["name"])))

    async def update(self, call: APIRequest[UpdateUnit, UnitQuery]) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.update(call.query.namespace, call.path["name"], call.body)))

    async def delete(self, call: UnitAPIRequest) -> APIResponse:
        await self._units.delete(call.query.namespace, call.path["name"])
        return APIResponse(204)

    async def stop(self, call: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.stop(call.query.namespace, call.path["name"])))

    async def start(self, call: UnitAPIRequest) -> APIResponse:
        return APIResponse(200, unit_view(await self._units.start(call.query.namespace, call.path["name"])))


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
            "Active units in the order of namespace and name. Units that come and go between two pages neither"
            " repeat nor hide others. A unit that was made or changed through another replica may take a moment to"
            " appear."
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
        faults=(Invalid, NoStock, OperationReused, Conflict, Gone, StorageInUse, Unavailable),
        scope=Scope.RUNTIME,
        body=CreateUnit,
        description=(
            "Takes one Ready stock unit of the same specName and turns it into an active unit, which keeps the"
            " stock's memory and GPUs. 201: it was made. 200: the same request was made before under this"
            " operationID, and this is its unit. Without stock nothing is made, and the same request may be sent"
            " again later. After a timeout or a 503, send the same request again."
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
        description="A unit can be read on every replica as soon as its creation was answered.",
        tag=TAG,
    )


def _update(handle: _UnitHandlers) -> Route:
    return Route(
        "PUT",
        UNIT_PATH,
        "updateUnit",
        "Change a unit",
        handle.update,
        responses={200: UnitView},
        faults=(Invalid, NotFound, Conflict, StorageInUse, Unavailable),
        scope=Scope.RUNTIME,
        body=UpdateUnit,
        query=UnitQuery,
        description=(
            "Changes only what the body names. A part that is named is replaced as a whole. A unit that already is"
            " as asked is not written. A change of what runs replaces the unit's pod."
        ),
        examples={"Another image": {"image": "python:3.13"}, "Another place for a storage": _MOVED_MOUNT},
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
        faults=(Invalid, NotFound, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        query=UnitQuery,
        description="The unit's pod and Service follow it. Its storages stay. Its stock does not come back.",
        tag=TAG,
    )


def _start_stop_route(verb: str, summary: str, promise: str, handler: RouteHandler) -> Route:
    return Route(
        "POST",
        f"{UNIT_PATH}/{verb}",
        f"{verb}Unit",
        summary,
        handler,
        responses={200: UnitView},
        faults=(Invalid, NotFound, Conflict, Unavailable),
        scope=Scope.RUNTIME,
        query=UnitQuery,
        description=f"{promise} Asking twice is as good as once.",
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
