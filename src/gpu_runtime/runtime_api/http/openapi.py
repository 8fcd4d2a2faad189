"""The OpenAPI document, made from the routes alone. Pure: no handler is called.

The order of the routes does not matter, so that the checked-in document changes only where the API does.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
from msgspec import inspect

from gpu_runtime.runtime_api.http.json_schema import JSONSchema, components, field_schema
from gpu_runtime.runtime_api.http.openapi_responses import (
    ERROR_SCHEMAS,
    HEADER_SCHEMAS,
    common_responses,
    route_responses,
)
from gpu_runtime.runtime_api.http.route import Route

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

INFO: JSONSchema = {
    "title": "GPU Runtime",
    "description": "Warm GPU stock, and the units that are made from it. Every answer is `{data}` or `{error}`; every"
    " request that makes something carries an operationID, under which it is made once. A path that is not here is"
    " answered with 404, and a method that a path does not have with 405 and `Allow`.",
    "version": "v1",
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
}

PATH_PARAM_DESCRIPTIONS = {
    "name": "The name of the thing.",
    "id": "Names the dead letter.",
    "invocationID": "Names the invocation.",
    "operationID": "The caller's name for the operation.",
}

BEARER_SECURITY_SCHEME: JSONSchema = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token of the configured file, or of a service account that the configuration trusts.",
}


def openapi_document(routes: Sequence[Route]) -> dict[str, Any]:
    _reject_duplicate_routes(routes)
    return {
        "openapi": "3.1.1",
        "info": INFO,
        "servers": [{"url": "/"}],
        "tags": [{"name": tag} for tag in sorted({route.tag for route in routes if route.tag})],
        "paths": _paths(routes),
        "components": {
            "schemas": _schemas(routes),
            "responses": common_responses(),
            "headers": HEADER_SCHEMAS,
            "securitySchemes": {"bearer": BEARER_SECURITY_SCHEME},
        },
    }


def serialize_document(openapi: dict[str, Any]) -> bytes:
    """As it is served and checked in: for people, too."""
    return msgspec.json.format(msgspec.json.encode(openapi), indent=2) + b"\n"


def _reject_duplicate_routes(routes: Sequence[Route]) -> None:
    for what, seen in (
        ("name", [each.name for each in routes]),
        ("place", [_method_and_path(each) for each in routes]),
    ):
        if doubles := sorted({each for each in seen if seen.count(each) > 1}):
            raise ValueError(f"several routes have the same {what}: {', '.join(doubles)}")


def _method_and_path(route: Route) -> str:
    return f"{route.method} {route.path}"


def _paths(routes: Iterable[Route]) -> dict[str, JSONSchema]:
    paths: dict[str, JSONSchema] = {}
    for route in sorted(routes, key=lambda each: (each.path, METHODS.index(each.method))):
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return paths


def _operation(route: Route) -> JSONSchema:
    operation: JSONSchema = {"operationId": route.name, "summary": route.summary}
    if route.description:
        operation["description"] = route.description
    if route.tag:
        operation["tags"] = [route.tag]
    if parameters := [*_path_parameters(route.path), *_query_parameters(route)]:
        operation["parameters"] = parameters
    if route.body:
        operation["requestBody"] = _request_body(route)
    operation["responses"] = route_responses(route)
    operation["security"] = [{"bearer": [route.scope.value]}] if route.scope else []
    return operation


def _path_parameters(path: str) -> list[JSONSchema]:
    return [
        {
            "name": part,
            "in": "path",
            "required": True,
            "description": PATH_PARAM_DESCRIPTIONS.get(part, f"The {part}."),
            "schema": {"type": "string", "minLength": 1},
        }
        for part in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(route: Route) -> list[JSONSchema]:
    info = inspect.type_info(route.query)
    fields = info.fields if isinstance(info, inspect.StructType) else ()
    return [_query_parameter(route, field) for field in fields]


def _query_parameter(route: Route, field: inspect.Field) -> JSONSchema:
    schema = field_schema(route.query, field, is_request=False)  # a query has no way to say null
    parameter = {"name": field.encode_name, "in": "query", "description": schema.pop("description", "")}
    return parameter | ({"required": True} if field.required else {}) | {"schema": schema}


def _request_body(route: Route) -> JSONSchema:
    content: JSONSchema = {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}} if route.body else {}
    if route.examples:
        content["examples"] = {
            title: {"value": msgspec.to_builtins(example)} for title, example in route.examples.items()
        }
    return {"required": True, "content": {"application/json": content}}


def _schemas(routes: Sequence[Route]) -> dict[str, JSONSchema]:
    sent = [route.body for route in routes if route.body]
    got = [data for route in routes for data in route.responses.values() if data is not None]
    ours = components(sent, got)
    if taken := ERROR_SCHEMAS.keys() & ours.keys():
        raise ValueError(f"{', '.join(sorted(taken))} is what errors look like: rename the model")
    return dict(sorted((ours | ERROR_SCHEMAS).items()))
