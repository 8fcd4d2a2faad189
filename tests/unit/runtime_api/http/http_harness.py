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
from gpu_runtime.process.health_server import health_handlers, serve_app
from gpu_runtime.process.shared_settings import BindAddressSettings
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.caller import AnonymousAuthenticator, Authenticator, Caller
from gpu_runtime.runtime_api.http.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, Query, Route, RouteHandler, Scope
from gpu_runtime.runtime_api.settings import RequestLimitSettings


class SampleBody(Body, frozen=True, kw_only=True):
    operation_id: str = "op-1"
    size: int = 0


class PagedQuery(Query, frozen=True, kw_only=True):
    limit: int = 10


async def echo(call: APIRequest[Any, Any]) -> APIResponse:
    return APIResponse(200, {"body": call.body, "query": call.query, "path": dict(call.path), "caller": call.caller})


def make_route(
    method: str = "GET", path: str = "/things/{name}", handler: RouteHandler = echo, **changes: Any
) -> Route:
    given: dict[str, Any] = {"name": f"{method.lower()}Thing", "summary": "a thing", "answers": {200: Any}}
    return Route(method=method, path=path, handler=handler, **(given | {"scope": Scope.RUNTIME} | changes))


class FixedAuthenticator:
    """An authenticator that knows one header."""

    def __init__(self, *scopes: Scope) -> None:
        self._scopes = frozenset(scopes)

    async def authenticate(self, authorization: str | None) -> Caller:
        if authorization != "Bearer good":
            raise Unauthenticated("who?")
        return Caller("token:tester", self._scopes)


@dataclass
class AppOptions:
    """What a test changes of the edge."""

    authenticator: Authenticator = field(default_factory=AnonymousAuthenticator)
    limits: RequestLimitSettings = field(default_factory=RequestLimitSettings)
    rates: CallerRateLimiter = field(default_factory=lambda: CallerRateLimiter(0, 1))
    stale_reason: str | None = None
    finish_within: float = 5.0


@dataclass
class AppReply:
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
class RunningApp:
    session: aiohttp.ClientSession
    port: int
    registry: CollectorRegistry
    stopping: asyncio.Event

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"

    async def request(self, method: str, path: str, **options: Any) -> AppReply:
        async with self.session.request(method, self.url(path), **options) as answer:
            return AppReply(answer.status, answer.headers, await answer.read())


@asynccontextmanager
async def running_app(routes: Sequence[Route], settings: AppOptions | None = None) -> AsyncIterator[RunningApp]:
    settings, stopping, registry = settings or AppOptions(), asyncio.Event(), CollectorRegistry()
    edge = Edge(
        settings.authenticator,
        settings.rates,
        AccessLog(registry),
        settings.limits,
        lambda: settings.stale_reason,
        stopping,
    )
    app = make_app(routes, edge, health_handlers(registry, stopping, {}))
    at = BindAddressSettings(bind_address="127.0.0.1:0")
    async with aiohttp.ClientSession() as session, serve_app(app, at, settings.finish_within) as port:
        yield RunningApp(session, port, registry, stopping)
