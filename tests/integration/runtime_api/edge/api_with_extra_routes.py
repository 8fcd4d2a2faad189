"""The runtime API as it is, with a few more routes that tests of the edge need: two that are slow, one that reads from
the caches, one that writes.

A program of its own: `python -m tests.integration.runtime_api.edge.api_with_extra_routes SETTINGS`.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.process.runner import run_process
from gpu_runtime.runtime_api import main
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, NoQuery, Query, Route, Scope
from gpu_runtime.runtime_api.settings import RuntimeAPISettings


class SlowQuery(Query, frozen=True, kw_only=True):
    seconds: float


class HeldQuery(Query, frozen=True, kw_only=True):
    until: str
    """A file that ends the wait when it is there."""


class NewUnit(Body, frozen=True, kw_only=True):
    name: str
    spec: dict[str, Any]


def extra_routes(services: main.Services) -> Sequence[Route]:
    async def slow(call: APIRequest[None, SlowQuery]) -> APIResponse:
        await asyncio.sleep(call.query.seconds)
        return APIResponse(200, call.caller)

    async def held(call: APIRequest[None, HeldQuery]) -> APIResponse:
        while not await asyncio.to_thread(Path(call.query.until).exists):  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.02)
        return APIResponse(200)

    async def units(_call: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, [unit.metadata.name for unit in services.informers.units.store.all()])

    async def create(call: APIRequest[NewUnit, NoQuery]) -> APIResponse:
        metadata = {"name": call.body.name, "namespace": services.settings.namespaces.stock}
        made = await services.client.create(GPU_UNITS, {"metadata": metadata, "spec": call.body.spec})
        services.informers.units.record_write(made)
        return APIResponse(201, made.metadata.name)

    def route(method: str, path: str, handler: Any, scope: Scope = Scope.RUNTIME, **more: Any) -> Route:
        name = f"{method.lower()}{path.rpartition('/')[2].title()}"
        return Route(method, path, name, name, handler, {200: Any}, scope=scope, **more)

    return (
        route("GET", "/test/slow", slow, query=SlowQuery),
        route("GET", "/test/held", held, query=HeldQuery),
        route("GET", "/test/units", units),
        route("POST", "/test/units", create, body=NewUnit),
        route("GET", "/test/operator", units, scope=Scope.OPERATOR),
    )


if __name__ == "__main__":
    own_routes = main.routes
    main.routes = lambda services: (*own_routes(services), *extra_routes(services))
    sys.exit(run_process(Path(sys.argv[1]), RuntimeAPISettings, main.serve))
