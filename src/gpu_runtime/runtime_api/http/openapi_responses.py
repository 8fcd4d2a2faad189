"""What a route may answer, as OpenAPI has it: its successes, its own refusals, and those that any route has. Pure."""

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
from gpu_runtime.runtime_api.http.envelope import http_status
from gpu_runtime.runtime_api.http.json_schema import JSONSchema, schema_of
from gpu_runtime.runtime_api.http.route import Route

REPLAY_DESCRIPTION = "The same request was made before under this ID: here is what came of it."
SUCCESS_DESCRIPTIONS = {
    200: "Done.",
    201: "Made.",
    202: "Accepted and recorded.",
    204: "Done. There is nothing to show.",
}
ERROR_DESCRIPTIONS = {
    400: "The request is wrong. `details` says what, field by field.",
    401: "The caller did not say who it is.",
    403: "The caller may not do this.",
    404: "There is no such thing.",
    409: "Somebody else was first, or there is nothing left to take.",
    410: "It was made under this operationID, and has been deleted since.",
    413: "The body is larger than the limit.",
    429: "Too many requests. Try again after the time that `Retry-After` says.",
    503: "Something that the answer depends on is away. The same request may succeed later.",
    504: "The answer did not come while the caller could wait. `details` has the invocationID under which it comes.",
}
COMMON_FAULTS = (Invalid, Unauthenticated, Forbidden, NotFound, TooLarge, Overloaded, Unavailable)
"""What is refused in the same words on every route that refuses it."""

COMMON_RESPONSE_NAMES = {
    400: "Invalid",
    401: "Unauthenticated",
    403: "Forbidden",
    404: "NotFound",
    413: "TooLarge",
    429: "Overloaded",
    503: "Unavailable",
}
"""The names of those answers. Python's own phrases change with its version."""

COMMON_HEADERS = {"X-Request-ID"}
ERROR_HEADERS = {401: {"WWW-Authenticate"}, **{status: {"Retry-After"} for status in (429, 503, 504)}}

HEADER_SCHEMAS: dict[str, JSONSchema] = {
    "Retry-After": {
        "description": "The seconds after which another try makes sense.",
        "schema": {"type": "integer", "minimum": 0},
    },
    "WWW-Authenticate": {
        "description": "How a caller says who it is.",
        "required": True,
        "schema": {"type": "string", "pattern": "^Bearer"},
    },
    "X-Request-ID": {
        "description": "Names the request in the logs: the caller's own X-Request-ID, or one that was made for it.",
        "required": True,
        "schema": {"type": "string", "minLength": 1},
    },
}

ERROR_SCHEMAS: dict[str, JSONSchema] = {
    "Error": {
        "description": "What every refusal looks like.",
        "type": "object",
        "required": ["error"],
        "properties": {"error": {"$ref": "#/components/schemas/ErrorBody"}},
    },
    "ErrorBody": {
        "description": "Why the request was refused.",
        "type": "object",
        "required": ["code", "message", "requestID"],
        "properties": {
            "code": {"description": "Why, as a word for programs. It never changes.", "type": "string"},
            "message": {"description": "Why, as a sentence for people. It may change.", "type": "string"},
            "details": {
                "description": "What is wrong, field by field.",
                "type": "array",
                "items": {"$ref": "#/components/schemas/ErrorDetail"},
            },
            "requestID": {"description": "Names the request in the logs.", "type": "string"},
        },
    },
    "ErrorDetail": {
        "description": "What is wrong with one field.",
        "type": "object",
        "required": ["field", "message"],
        "properties": {
            "field": {"description": "The field's path, for example template.ports[0].name.", "type": "string"},
            "value": {"description": "The field's value, where the caller did not choose it.", "type": "string"},
            "message": {"description": "What to do about it.", "type": "string"},
        },
    },
}


def route_responses(route: Route) -> dict[str, JSONSchema]:
    """Every answer that the route can give, in the order of the statuses."""
    given = {status: _success_response(route, status, data) for status, data in route.responses.items()}
    given |= {status: _error_response(status, faults) for status, faults in _faults_by_status(route).items()}
    return {str(status): given[status] for status in sorted(given)}


def common_responses() -> dict[str, JSONSchema]:
    """The refusals that routes share, under the names that `responses` uses."""
    shared = {http_status(fault): fault for fault in COMMON_FAULTS}
    return {
        COMMON_RESPONSE_NAMES[status]: _inline_error_response(status, [shared[status]]) for status in sorted(shared)
    }


def _error_response(status: int, faults: set[type[RuntimeFault]]) -> JSONSchema:
    shared = faults <= set(COMMON_FAULTS)
    return (
        {"$ref": f"#/components/responses/{COMMON_RESPONSE_NAMES[status]}"}
        if shared
        else _inline_error_response(status, faults)
    )


def _faults_by_status(route: Route) -> dict[int, set[type[RuntimeFault]]]:
    grouped: dict[int, set[type[RuntimeFault]]] = {}
    for fault in (*_middleware_faults(route), *route.faults):
        grouped.setdefault(http_status(fault), set()).add(fault)
    return grouped


def _middleware_faults(route: Route) -> Iterator[type[RuntimeFault]]:
    yield from (Invalid, TooLarge)  # also where nothing is asked for: a parameter or a body may be sent all the same
    yield Unavailable
    if route.scope:
        yield from (Unauthenticated, Forbidden, Overloaded)
    if "{" in route.path:
        yield NotFound


def _inline_error_response(status: int, faults: Iterable[type[RuntimeFault]]) -> JSONSchema:
    codes = ", ".join(f"`{code}`" for code in sorted({fault.code for fault in faults}))
    return {
        "description": f"{ERROR_DESCRIPTIONS[status]} Code: {codes}.",
        "headers": _header_refs(COMMON_HEADERS | ERROR_HEADERS.get(status, set())),
        "content": _json_content({"$ref": "#/components/schemas/Error"}),
    }


def _success_response(route: Route, status: int, data: Any) -> JSONSchema:
    replay = status == 200 and route.method == "POST" and bool({201, 202} & route.responses.keys())
    answer: JSONSchema = {
        "description": REPLAY_DESCRIPTION if replay else SUCCESS_DESCRIPTIONS[status],
        "headers": _header_refs(COMMON_HEADERS),
    }
    return answer if data is None else answer | {"content": _json_content(_envelope(data))}


def _envelope(data: Any) -> JSONSchema:
    properties = {"data": schema_of(data)}
    if get_origin(data) in (list, tuple):
        properties["continue"] = {
            "description": "What the next page begins with. Absent on the last page.",
            "type": "string",
        }
    return {"type": "object", "required": ["data"], "properties": properties}


def _json_content(schema: JSONSchema) -> JSONSchema:
    return {"application/json": {"schema": schema}}


def _header_refs(names: set[str]) -> JSONSchema:
    return {name: {"$ref": f"#/components/headers/{name}"} for name in sorted(names)}
