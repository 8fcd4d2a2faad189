"""Generates the OpenAPI responses of a route: its successes, its own errors, and the errors common to all routes.

Pure functions.
"""

from collections.abc import Iterable, Iterator
from typing import Any, get_origin

from gpu_runtime.contract.errors import (
    Forbidden,
    Invalid,
    NotFound,
    Overloaded,
    RuntimeFault,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from gpu_runtime.contract.model_schema import JSONSchema
from gpu_runtime.runtime_api.http.envelope import Error, SlowRequest, http_status
from gpu_runtime.runtime_api.http.json_schema import schema_of
from gpu_runtime.runtime_api.http.route import Route

REPLAY_DESCRIPTION = (
    "A replay: the API has accepted the same request before. The response describes the outcome of the first request."
)
SUCCESS_DESCRIPTIONS = {
    200: "Success.",
    201: "Created.",
    202: "Accepted and recorded.",
    204: "Success, without a response body.",
}
ERROR_DESCRIPTIONS = {
    400: "The request is invalid. `details` contains the errors by field.",
    401: "The request has no valid bearer token.",
    403: "The caller lacks the required scope.",
    404: "The object does not exist.",
    409: "The request conflicts with the current state. `code` contains the reason.",
    408: "The client sent the body too slowly.",
    410: "The object that this operationID created has been deleted.",
    413: "The request body is larger than the limit.",
    429: "Too many requests. Send the request again after the time in `Retry-After`.",
    503: "A dependency of the API is unavailable. The same request may succeed later.",
    504: "The result did not arrive in time. `details` contains the invocationID. Use it to get the result later.",
}
COMMON_FAULTS = (Invalid, Unauthenticated, Forbidden, NotFound, SlowRequest, TooLarge, Overloaded, Unavailable)
"""The faults that have the same description on every route. Each of them has one response component for all routes."""

COMMON_FAULTS_BY_STATUS = {http_status(fault): fault for fault in COMMON_FAULTS}

COMMON_HEADERS = {"X-Request-ID"}
ERROR_HEADERS = {401: {"WWW-Authenticate"}, **{status: {"Retry-After"} for status in (429, 503, 504)}}

HEADER_SCHEMAS: dict[str, JSONSchema] = {
    "Retry-After": {
        "description": "The number of seconds after which the request can be sent again.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "The authentication scheme that the request needs.",
        "required": True,
        "schema": {"type": "string", "pattern": "^Bearer"},
    },
    "X-Request-ID": {
        "description": "The ID of the request in the logs: the X-Request-ID of the request, or a generated one.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    },
}


def route_responses(route: Route) -> dict[str, JSONSchema]:
    """Return all responses of the route, sorted by status."""
    by_status = {status: _success_response(route, status, data) for status, data in route.responses.items()}
    by_status |= {status: _error_response(status, faults) for status, faults in _faults_by_status(route).items()}
    return {str(status): by_status[status] for status in sorted(by_status)}


def common_responses() -> dict[str, JSONSchema]:
    """Return the shared error responses by component name. `route_responses` refers to these names."""
    shared = sorted(COMMON_FAULTS_BY_STATUS.items())
    return {fault.__name__: _inline_error_response(status, [fault]) for status, fault in shared}


def _error_response(status: int, faults: set[type[RuntimeFault]]) -> JSONSchema:
    if faults <= set(COMMON_FAULTS):
        return {"$ref": f"#/components/responses/{COMMON_FAULTS_BY_STATUS[status].__name__}"}
    return _inline_error_response(status, faults)


def _faults_by_status(route: Route) -> dict[int, set[type[RuntimeFault]]]:
    grouped: dict[int, set[type[RuntimeFault]]] = {}
    for fault in (*_middleware_faults(route), *route.faults):
        grouped.setdefault(http_status(fault), set()).add(fault)
    return grouped


def _middleware_faults(route: Route) -> Iterator[type[RuntimeFault]]:
    # On every route: a caller may send a body or query that the route does not have.
    yield from (Invalid, SlowRequest, TooLarge)
    yield from (Overloaded, Unavailable)
    if route.scope:
        yield from (Unauthenticated, Forbidden)
    if "{" in route.path:
        yield NotFound


def _inline_error_response(status: int, faults: Iterable[type[RuntimeFault]]) -> JSONSchema:
    codes = ", ".join(f"`{code}`" for code in sorted({fault.code for fault in faults}))
    return {
        "description": f"{ERROR_DESCRIPTIONS[status]} Code: {codes}.",
        "headers": _header_refs(COMMON_HEADERS | ERROR_HEADERS.get(status, set())),
        "content": _json_content(schema_of(Error)),
    }


def _success_response(route: Route, status: int, data: Any) -> JSONSchema:
    replay = status == 200 and route.method == "POST" and bool({201, 202} & route.responses.keys())
    response: JSONSchema = {
        "description": REPLAY_DESCRIPTION if replay else SUCCESS_DESCRIPTIONS[status],
        "headers": _header_refs(COMMON_HEADERS),
    }
    return response if data is None else response | {"content": _json_content(_envelope(data))}


def _envelope(data: Any) -> JSONSchema:
    properties = {"data": schema_of(data)}
    if get_origin(data) in (list, tuple):
        properties["continue"] = {
            "description": "The continue token of the next page. Absent on the last page.",
            "type": "string",
        }
    return {"type": "object", "required": ["data"], "properties": properties}


def _json_content(schema: JSONSchema) -> JSONSchema:
    return {"application/json": {"schema": schema}}


def _header_refs(names: set[str]) -> JSONSchema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
