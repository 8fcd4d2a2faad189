"""Routes as data, and the base classes of their requests and responses.

The aiohttp application, the authentication and the OpenAPI document are generated from routes.
"""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from msgspec import Struct

from gpu_runtime.contract.errors import RuntimeFault


class Scope(StrEnum):
    """A permission of a caller."""

    OPERATOR = "operator"
    """Allows requests for stock, pools, jobs, the inventory and dead letters: all paths below /api/v1/operator."""
    RUNTIME = "runtime"
    """Allows requests for units, storages and invocations."""


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


RouteHandler = Callable[[APIRequest[Any, Any]], Awaitable[APIResponse]]


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
    body: type[Body] | None = None
    query: type[Query] = NoQuery
    description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Valid request bodies, by a short title."""
    tag: str = ""
    """The heading of the route in the documentation."""
