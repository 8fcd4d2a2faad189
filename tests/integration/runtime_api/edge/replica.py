"""The runtime API as it is, with a few more routes that tests of the edge need: two that are slow, one that reads from
the caches, one that writes.

A program of its own: `python -m tests.integration.runtime_api.edge.replica SETTINGS`.
"""

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.process.runner import run_process
from gpu_runtime.runtime_api import main
from gpu_runtime.runtime_api.http.route import Answer, Body, Call, NoQuery, Query, Route, Scope
from gpu_runtime.runtime_api.settings import RuntimeAPISettings


class Slowly(Query, frozen=True, kw_only=True):
    seconds: float


class Held(Query, frozen=True, kw_only=True):
    until: str
    """A file that ends the wait when it is there."""


class NewUnit(Body, frozen=True, kw_only=True):
    name: str
    spec: dict[str, Any]


def more_routes(services: main.Services) -> Sequence[Route]:
    async def slow(call: Call[None, Slowly]) -> Answer:
        await asyncio.sleep(call.query.seconds)
        return Answer(200, call.caller)

    async def held(call: Call[None, Held]) -> Answer:
        while not await asyncio.to_thread(Path(call.query.until).exists):  # noqa: ASYNC110 - another process says it
            await asyncio.sleep(0.02)
        return Answer(200)

    async def units(_call: Call[None, NoQuery]) -> Answer:
        return Answer(200, [unit.metadata.name for unit in services.caches.units.store.all()])

    async def create(call: Call[NewUnit, NoQuery]) -> Answer:
        metadata = {"name": call.body.name, "namespace": services.settings.namespaces.stock}
        made = await services.client.create(GPU_UNITS, {"metadata": metadata, "spec": call.body.spec})
        services.caches.units.learn(made)
        return Answer(201, made.metadata.name)

    def route(method: str, path: str, handler: Any, scope: Scope = Scope.RUNTIME, **more: Any) -> Route:
        name = f"{method.lower()}{path.rpartition('/')[2].title()}"
        return Route(method, path, name, name, handler, {200: Any}, scope=scope, **more)

    return (
        route("GET", "/test/slow", slow, query=Slowly),
        route("GET", "/test/held", held, query=Held),
        route("GET", "/test/units", units),
        route("POST", "/test/units", create, body=NewUnit),
        route("GET", "/test/operator", units, scope=Scope.OPERATOR),
    )


if __name__ == "__main__":
    own_routes = main.routes
    main.routes = lambda services: (*own_routes(services), *more_routes(services))
    sys.exit(run_process(Path(sys.argv[1]), RuntimeAPISettings, main.serve))
