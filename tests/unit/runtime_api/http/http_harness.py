"""Serves routes with the real HTTP edge on a local port, for tests."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Unauthenticated
from gpu_runtime.process.connection_table import ConnectionLimits
from gpu_runtime.process.health_server import HEALTH_CONNECTION_LIMITS, HealthHandler, health_handlers, serve_app
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.process.shared_settings import BindAddressSettings
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.authentication import AnonymousAuthenticator, Authenticator
from gpu_runtime.runtime_api.http.byte_budget import ByteBudget
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Body, Caller, Query, Route, RouteHandler, Scope
from gpu_runtime.runtime_api.settings import RequestLimitSettings


class SampleBody(Body, frozen=True, kw_only=True):
    operation_id: str = "op-1"
    size: int = 0


class PagedQuery(Query, frozen=True, kw_only=True):
    limit: int = 10


async def echo(request: APIRequest[Any, Any]) -> APIResponse:
    data = {"body": request.body, "query": request.query, "path": dict(request.path), "caller": request.caller}
    return APIResponse(200, data)


def make_route(method: str = "GET", path: str = "/items/{name}", handler: RouteHandler = echo, **changes: Any) -> Route:
    defaults: dict[str, Any] = {"name": f"{method.lower()}Item", "summary": "an item", "responses": {200: Any}}
    return Route(method=method, path=path, handler=handler, **(defaults | {"scope": Scope.RUNTIME} | changes))


class FixedAuthenticator:
    """Accepts exactly one Authorization header."""

    def __init__(self, *scopes: Scope) -> None:
        self._scopes = frozenset(scopes)

    async def authenticate(self, authorization: str | None) -> Caller:
        if authorization != "Bearer good":
            raise Unauthenticated("unknown token")
        return Caller("token:tester", self._scopes)


@dataclass
class AppOptions:
    """The options of the edge that a test can change."""

    authenticator: Authenticator = field(default_factory=AnonymousAuthenticator)
    limits: RequestLimitSettings = field(default_factory=RequestLimitSettings)
    rate_limiter: CallerRateLimiter = field(default_factory=lambda: CallerRateLimiter(0, 1))
    anonymous_rate_limiter: CallerRateLimiter = field(default_factory=lambda: CallerRateLimiter(0, 1))
    budget: ByteBudget = field(default_factory=lambda: ByteBudget(RequestLimitSettings().max_bytes_in_flight))
    plain_handlers: dict[str, HealthHandler] = field(default_factory=dict)
    connection_limits: ConnectionLimits = HEALTH_CONNECTION_LIMITS
    stale_reason: str | None = None
    shutdown_timeout: float = 5.0


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
        async with self.session.request(method, self.url(path), **options) as response:
            return AppReply(response.status, response.headers, await response.read())


@asynccontextmanager
async def running_app(routes: Sequence[Route], options: AppOptions | None = None) -> AsyncIterator[RunningApp]:
    options, stopping, registry = options or AppOptions(), asyncio.Event(), CollectorRegistry()
    edge = Edge(
        options.authenticator,
        options.rate_limiter,
        options.anonymous_rate_limiter,
        options.budget,
        AccessLog(registry),
        options.limits,
        lambda: options.stale_reason,
        stopping,
    )
    app = make_app(routes, edge, health_handlers(stopping, {}) | options.plain_handlers)
    address = BindAddressSettings(bind_address="127.0.0.1:0")
    served = serve_app(app, address, options.shutdown_timeout, connection_limits=options.connection_limits)
    async with aiohttp.ClientSession() as session, served as port:
        yield RunningApp(session, port, registry, stopping)
