"""A route as data: the server, the authentication and the OpenAPI document are all made from it."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Generic, TypeVar

from msgspec import Struct

from gpu_runtime.contract.errors import RuntimeFault


class Scope(StrEnum):
    """What a caller is trusted with."""

    OPERATOR = "operator"
    """Stock, pools, jobs and the inventory: /api/v1/operator."""
    RUNTIME = "runtime"
    """Units, storages and invocations."""


class Body(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a caller sends. A field that is not in it is an error, also inside the parts it is made of."""


class Query(Struct, frozen=True, kw_only=True, rename="camel"):
    """What a caller asks for after the question mark."""


class NoQuery(Query, frozen=True, kw_only=True):
    """A route that is asked no questions. A parameter is an error there, too."""


class View(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """What a caller gets to see of a thing."""


B = TypeVar("B")
Q = TypeVar("Q", bound=Query)


@dataclass(frozen=True)
class APIRequest(Generic[B, Q]):
    """A request, decoded and admitted."""

    body: B
    """None where the route takes no body."""
    query: Q
    path: Mapping[str, str] = field(default_factory=dict)
    """The parts of the path that are in braces."""
    caller: str = "anonymous"


@dataclass(frozen=True)
class APIResponse:
    """A success. `data` is None for 204; `continuation` is what the next page of a list begins with."""

    status: int
    data: Any = None
    continuation: str | None = None


RouteHandler = Callable[[APIRequest[Any, Any]], Awaitable[APIResponse]]


@dataclass(frozen=True)
class Route:
    method: str
    path: str
    """With parts in braces: /api/v1/gpu-units/{name}."""
    name: str
    """One name per route, in camel case: the OpenAPI operationId."""
    summary: str
    handler: RouteHandler
    responses: Mapping[int, Any]
    """Every status of success, with the type of its data (list[...] for a list, None for no data)."""
    faults: tuple[type[RuntimeFault], ...] = ()
    """What this route may refuse with, beyond what every route may."""
    scope: Scope | None = None
    """None only for what anybody may ask."""
    needs_cluster: bool = True
    """Whether it is answered with 503 while the state of the cluster is not known."""
    body: type[Body] | None = None
    query: type[Query] = NoQuery
    description: str = ""
    examples: Mapping[str, Any] = field(default_factory=dict)
    """Bodies that work, by a short title."""
    tag: str = ""
    """The heading under which the documentation has it."""
