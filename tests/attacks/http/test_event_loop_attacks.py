"""One request body must not keep the event loop of a replica busy: all other callers would wait."""

import json
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import pytest

from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Route, RouteHandler
from gpu_runtime.runtime_api.openapi_routes import documented_routes
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.requests import CreateStorage
from gpu_runtime.runtime_api.storages.storage_admission import admit_storage
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.unit_admission import admit_unit
from tests.attacks.http.loop_blocking import measured_loop
from tests.unit.runtime_api.http.http_harness import AppReply, running_app

MAX_BLOCKED_SECONDS = 0.1
MAX_ERROR_BYTES = 32 * 1024
NAMESPACES = APINamespaceSettings()
UNIT = {"operationID": "op-1", "name": "web", "specName": "g1.1", "image": "nginx"}


async def create_unit(request: APIRequest[CreateUnit, Any]) -> APIResponse:
    return APIResponse(201, admit_unit(request.body, NAMESPACES).name)


async def create_storage(request: APIRequest[CreateStorage, Any]) -> APIResponse:
    return APIResponse(201, admit_storage(request.body, NAMESPACES).name)


async def accept(request: APIRequest[Any, Any]) -> APIResponse:
    return APIResponse(202, "accepted")


def real_route(name: str, handler: RouteHandler) -> Route:
    """Return a route of the API with its limits, and with another handler."""
    return replace(next(each for each in documented_routes() if each.name == name), handler=handler)


UNITS = real_route("createUnit", create_unit)
STORAGES = real_route("createStorage", create_storage)
INVOCATIONS = real_route("invoke", accept)


def document(*fields: Iterable[tuple[str, str]]) -> bytes:
    """Return a JSON object with these names and JSON values, which may repeat."""
    return ("{" + ",".join(f'"{name}":{value}' for group in fields for name, value in group) + "}").encode()


def mounts(count: int, name: str) -> bytes:
    items = [{"name": name.format(index), "mountPath": f"/m/{index}"} for index in range(count)]
    return json.dumps(UNIT | {"storageMounts": items}).encode()


async def send(route: Route, raw: bytes) -> tuple[AppReply, float]:
    """Return the reply, and for how long the request blocked the loop."""
    async with running_app([route]) as edge, measured_loop() as blocking:
        reply = await edge.request("POST", route.path, data=raw, headers={"Content-Type": "application/json"})
    return reply, blocking.longest_seconds


ATTACKS: dict[str, tuple[Route, bytes, int]] = {
    "one key of 7,000 is given twice": (
        UNITS,
        document(((f"{index:x}", "0") for index in range(7000)), [("0", "0")]),
        400,
    ),
    "each of 3,000 keys is given twice": (
        UNITS,
        document(*[[(f"{index:x}", "0") for index in range(3000)]] * 2),
        400,
    ),
    "a duplicate key inside of a payload": (
        INVOCATIONS,
        document(
            [("serverlessRequestID", '"f"')],
            [("payload", document(((str(index), "0") for index in range(50_000)), [("7", "0")]).decode())],
        ),
        202,
    ),
    "1,500 mounts of different storages": (UNITS, mounts(1500, "s{}"), 400),
    "1,500 mounts of one storage": (UNITS, mounts(1500, "s"), 400),
    "18,000 mounts": (UNITS, mounts(18_000, "s"), 413),
    "4,000 unknown fields with similar names": (
        UNITS,
        document((f"specNam{index}", "0") for index in range(4000)),
        400,
    ),
    "80,000 unknown fields": (INVOCATIONS, document((f"{index:x}", "0") for index in range(80_000)), 413),
    "a quantity of 4,000 digits": (STORAGES, document([("name", '"a"'), ("size", f'"{"1" * 4000}x"')]), 400),
    "a quantity of 60,000 digits": (
        UNITS,
        document(
            ((key, json.dumps(value)) for key, value in UNIT.items()),
            [("template", json.dumps({"sharedMemory": "1" * 60_000 + "x"}))],
        ),
        400,
    ),
    "4,000 empty environment variables": (
        UNITS,
        json.dumps(UNIT | {"template": {"envs": [{}] * 4000}}).encode(),
        400,
    ),
}


@pytest.mark.parametrize(("route", "raw", "status"), ATTACKS.values(), ids=ATTACKS)
async def test_hostile_body_does_not_block_the_event_loop(route: Route, raw: bytes, status: int) -> None:
    reply, blocked = await send(route, raw)
    assert blocked < MAX_BLOCKED_SECONDS
    assert len(reply.body) < MAX_ERROR_BYTES
    assert reply.status == status


async def test_error_response_names_at_most_20_problems_and_does_not_repeat_long_values() -> None:
    envs = [{"name": f"1{'x' * 500}{index}"} for index in range(100)]
    reply, _ = await send(UNITS, json.dumps(UNIT | {"template": {"envs": envs}}).encode())
    assert (reply.status, len(reply.error["details"])) == (400, 20)
    assert max(len(each["message"]) for each in reply.error["details"]) <= 400
