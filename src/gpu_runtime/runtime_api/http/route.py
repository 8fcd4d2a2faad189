"""Routes as data, and the base classes of their requests and responses.

The aiohttp application, the authentication and the OpenAPI document are generated from routes. Each resource has one
RouteGroup, and one handler function per route:

    UNITS = RouteGroup[UnitService]("GPU units", Scope.RUNTIME)

    @UNITS.route("GET", UNIT_PATH, {200: UnitView}, faults=(Invalid, NotFound))
    async def get_unit(units: UnitService, request: APIRequest[None, UnitQuery]) -> APIResponse:
        \"""Get a unit.

        The description in the OpenAPI document.
        \"""

The annotation of `request` has the types of the body and the query. The docstring has the summary and the description.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from functools import partial
from inspect import getdoc
from types import NoneType
from typing import Any, Generic, TypeAlias, TypeVar, get_args, get_type_hints

from msgspec import Struct

from gpu_runtime.contract.errors import Invalid, RuntimeFault, Unavailable

DEFAULT_MAX_BODY_BYTES = 64 * 1024
"""Maximum size of the body of a route that declares no other limit."""


SMALL_MAX_BODY_BYTES = 4 * 1024
"""Maximum size of a body that has only a few short fields."""


class Scope(StrEnum):
    """A permission of a caller."""

    OPERATOR = "operator"
    """Allows requests for stock, pools, jobs, the inventory and dead letters: all paths below /api/v1/operator, except
    for the return of stock."""
    RUNTIME = "runtime"
    """Allows requests for units, storages and invocations."""
    WORKER = "worker"
    """Allows the creation of workers and the return of their stock. Only the activator needs this scope."""


@dataclass(frozen=True)
class Caller:
    """The authenticated caller of a request."""

    name: str
    scopes: frozenset[Scope] = frozenset()


ANONYMOUS = Caller("anonymous", frozenset(Scope))
"""The caller of every request if authentication is off, and of every request to a route without a scope."""


class Body(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A request body. The API rejects unknown fields at every depth."""


class Query(Struct, frozen=True, kw_only=True, rename="camel"):
    """The query parameters of a request."""


class NoQuery(Query, frozen=True, kw_only=True):
    """The query of a route without query parameters. The API rejects every parameter."""


class View(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """An object in a response body."""


B = TypeVar("B")
Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class APIRequest(Generic[B, Q]):
    """An authenticated and decoded request."""

    body: B
    """None if the route has no body."""
    query: Q
    path: Mapping[str, str] = field(default_factory=dict)
    """The path parameters."""
    caller: str = "anonymous"


@dataclass(frozen=True)
class APIResponse:
    """A successful response. `data` is None for 204. `continuation` is the continue token of the next page of a
    list."""

    status: int
    data: Any = None
    continuation: str | None = None


RouteHandler: TypeAlias = Callable[..., Awaitable[APIResponse]]
"""Takes an APIRequest. In the routes of a RouteGroup, it takes the service of the resource before the request."""


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    """The path, with parameters in braces: /api/v1/gpu-units/{name}."""
    name: str
    """The unique name of the route in camel case. It is the OpenAPI operationId."""
    summary: str
    handler: RouteHandler
    responses: Mapping[int, Any]
    """The type of the data by success status: list[...] for a list, None for no data."""
    faults: tuple[type[RuntimeFault], ...] = ()
    """The faults of this route, in addition to the faults that every route can raise."""
    scope: Scope | None = None
    """The scope that the caller needs. None for a route that needs no authentication."""
    needs_cluster: bool = True
    """Whether the route answers 503 while the informer caches are incomplete or stale."""
    audit_reads: bool = False
    """Whether requests that only read are audited, too, because the responses contain payloads or results."""
    body: type[Body] | None = None
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    """The maximum size of the request body. The API rejects a larger body with 413, without reading it."""
    query: type[Query] = NoQuery
    description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Valid request bodies, by a short title."""
    tag: str = ""
    """The heading of the route in the documentation."""


S = TypeVar("S")
ServiceHandler: TypeAlias = Callable[[S, APIRequest[B, Q]], Awaitable[APIResponse]]


@dataclass(frozen=True)
class RouteGroup(Generic[S]):
    """The routes of one resource. Each of them can raise the common faults."""

    tag: str
    scope: Scope | None
    needs_cluster: bool = True
    audit_reads: bool = False
    common_faults: tuple[type[RuntimeFault], ...] = (Invalid, Unavailable)
    routes: list[Route] = field(default_factory=list)

    def route(  # noqa: PLR0913 - each argument is a property of a route
        self,
        method: str,
        path: str,
        responses: Mapping[int, Any],
        *,
        faults: Sequence[type[RuntimeFault]] = (),
        examples: Mapping[str, Any] | None = None,
        max_body_bytes: int = DEFAULT_MAX_BODY_BYTES,
    ) -> Callable[[ServiceHandler[S, B, Q]], ServiceHandler[S, B, Q]]:
        """Add a route with the decorated handler."""

        def add(handler: ServiceHandler[S, B, Q]) -> ServiceHandler[S, B, Q]:
            body, query = get_args(get_type_hints(handler)["request"])
            summary, _, description = (getdoc(handler) or "").partition("\n")
            route = Route(
                method=method,
                path=path,
                name=_camel_case(handler.__name__),
                summary=summary.removesuffix("."),
                handler=handler,
                responses=responses,
                faults=(*self.common_faults, *faults),
                scope=self.scope,
                needs_cluster=self.needs_cluster,
                audit_reads=self.audit_reads,
                body=None if body is NoneType else body,
                max_body_bytes=max_body_bytes,
                query=query,
                description=" ".join(description.split()),
                examples=examples or {},
                tag=self.tag,
            )
            self.routes.append(route)
            return handler

        return add

    def bind(self, service: S) -> Sequence[Route]:
        """Return the routes with handlers that call this service."""
        return [replace(route, handler=partial(route.handler, service)) for route in self.routes]


def _camel_case(name: str) -> str:
    first, *others = name.split("_")
    return first + "".join(map(str.capitalize, others))
