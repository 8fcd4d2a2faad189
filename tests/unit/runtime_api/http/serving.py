"""A served edge for tests: routes in, a client of the port out."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.process.health_server import endpoint_handlers, listening
from gpu_runtime.process.shared_settings import Endpoints
from gpu_runtime.runtime_api.http.access_log import Journal
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.caller import Authenticator, Caller, Open
from gpu_runtime.runtime_api.http.rate_limit import Rates
from gpu_runtime.runtime_api.http.route import Answer, Body, Call, Handler, Query, Route, Scope
from gpu_runtime.runtime_api.settings import Limits


class Thing(Body, frozen=True, kw_only=True):
    operation_id: str = "op-1"
    size: int = 0


class Paged(Query, frozen=True, kw_only=True):
    limit: int = 10


async def echo(call: Call[Any, Any]) -> Answer:
    return Answer(200, {"body": call.body, "query": call.query, "path": dict(call.path), "caller": call.caller})


def a_route(method: str = "GET", path: str = "/things/{name}", handler: Handler = echo, **changes: Any) -> Route:
    given: dict[str, Any] = {"name": f"{method.lower()}Thing", "summary": "a thing", "answers": {200: Any}}
    return Route(method=method, path=path, handler=handler, **(given | {"scope": Scope.RUNTIME} | changes))


class Fixed:
    """An authenticator that knows one header."""

    def __init__(self, *scopes: Scope) -> None:
        self._scopes = frozenset(scopes)

    async def caller(self, authorization: str | None) -> Caller:
        if authorization != "Bearer good":
            raise Unauthenticated("who?")
        return Caller("token:tester", self._scopes)


@dataclass
class Settings:
    """What a test changes of the edge."""

    authenticator: Authenticator = field(default_factory=Open)
    limits: Limits = field(default_factory=Limits)
    rates: Rates = field(default_factory=lambda: Rates(0, 1))
    unusable: str | None = None
    finish_within: float = 5.0


@dataclass
class Reply:
    status: int
    headers: Any
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        return dict(self.json["error"])


@dataclass
class Served:
    session: aiohttp.ClientSession
    port: int
    registry: CollectorRegistry
    stopping: asyncio.Event

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def ask(self, method: str, path: str, **options: Any) -> Reply:
        async with self.session.request(method, self.url(path), **options) as answer:
            return Reply(answer.status, answer.headers, await answer.read())


@asynccontextmanager
async def served(routes: Sequence[Route], settings: Settings | None = None) -> AsyncIterator[Served]:
    settings, stopping, registry = settings or Settings(), asyncio.Event(), CollectorRegistry()
    edge = Edge(
        settings.authenticator,
        settings.rates,
        Journal(registry),
        settings.limits,
        lambda: settings.unusable,
        stopping,
    )
    app = make_app(routes, edge, endpoint_handlers(registry, stopping, {}))
    at = Endpoints(bind="127.0.0.1:0")
    async with aiohttp.ClientSession() as session, listening(app, at, settings.finish_within) as port:
        yield Served(session, port, registry, stopping)
