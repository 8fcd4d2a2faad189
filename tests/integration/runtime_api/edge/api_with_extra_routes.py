"""The runtime API with additional routes for tests of the HTTP edge: two slow routes, one that reads from the caches
and one that writes.

Start it with `python -m tests.integration.runtime_api.edge.api_with_extra_routes SETTINGS`.
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
    """The path of a file. The response is sent when the file exists."""


class NewUnit(Body, frozen=True, kw_only=True):
    name: str
    spec: dict[str, Any]


def extra_routes(services: main.Services) -> Sequence[Route]:
    async def slow(request: APIRequest[None, SlowQuery]) -> APIResponse:
        await asyncio.sleep(request.query.seconds)
        return APIResponse(200, request.caller)

    async def held(request: APIRequest[None, HeldQuery]) -> APIResponse:
        while not await asyncio.to_thread(Path(request.query.until).exists):  # noqa: ASYNC110 - another process creates the file
            await asyncio.sleep(0.02)
        return APIResponse(200)

    async def units(_request: APIRequest[None, NoQuery]) -> APIResponse:
        return APIResponse(200, [unit.metadata.name for unit in services.informers.units.store.all()])

    async def create(request: APIRequest[NewUnit, NoQuery]) -> APIResponse:
        metadata = {"name": request.body.name, "namespace": services.settings.namespaces.stock}
        created = await services.client.create(GPU_UNITS, {"metadata": metadata, "spec": request.body.spec})
        services.informers.units.record_write(created)
        return APIResponse(201, created.metadata.name)

    def route(method: str, path: str, handler: Any, scope: Scope = Scope.RUNTIME, **options: Any) -> Route:
        name = f"{method.lower()}{path.rpartition('/')[2].title()}"
        return Route(method, path, name, name, handler, {200: Any}, scope=scope, **options)

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
    sys.exit(run_process(Path(sys.argv[1]), RuntimeAPISettings, main.run_runtime_api))
