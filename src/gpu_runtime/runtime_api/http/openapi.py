"""Generates the OpenAPI document from the routes. Pure functions: they call no handler.

The document does not depend on the order of the routes, so that the checked-in file changes only if the API changes.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import msgspec

from gpu_runtime.contract.model_schema import JSONSchema, model_fields
from gpu_runtime.runtime_api.http.envelope import Error
from gpu_runtime.runtime_api.http.json_schema import components, field_schema
from gpu_runtime.runtime_api.http.openapi_responses import (
    HEADER_SCHEMAS,
    common_responses,
    route_responses,
)
from gpu_runtime.runtime_api.http.route import Route

METHODS = ("GET", "POST", "PUT", "PATCH", "DELETE")

INFO: JSONSchema = {
    "title": "GPU Runtime",
    "description": "Manages warm GPU stock and the units that are created from it. Every response body is `{data}` or"
    " `{error}`. Every request that creates a unit, a pool or stock has an operationID. If a caller sends the same"
    " request with the same operationID again, the API creates no second object. The API answers 404 for an unknown"
    " path, and 405 with the header `Allow` for an unsupported method.",
    "version": "v1",
    "license": {"name": "Apache License 2.0", "identifier": "Apache-2.0"},
}

PATH_PARAM_DESCRIPTIONS = {
    "name": "The name of the object.",
    "id": "The ID of the dead letter.",
    "invocationID": "The ID of the invocation.",
    "operationID": "The ID of the operation, chosen by the caller.",
}

BEARER_SECURITY_SCHEME: JSONSchema = {
    "type": "http",
    "scheme": "bearer",
    "description": "A token from the configured token file, or a token of a configured service account.",
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
    """Return the document as indented JSON. The API serves this text, and the repository contains it."""
    return msgspec.json.format(msgspec.json.encode(openapi), indent=2) + b"\n"


def _reject_duplicate_routes(routes: Sequence[Route]) -> None:
    for noun, values in (
        ("name", [each.name for each in routes]),
        ("method and path", [f"{each.method} {each.path}" for each in routes]),
    ):
        if duplicates := sorted({each for each in values if values.count(each) > 1}):
            raise ValueError(f"several routes have the same {noun}: {', '.join(duplicates)}")


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
            "name": name,
            "in": "path",
            "required": True,
            "description": PATH_PARAM_DESCRIPTIONS.get(name, f"The {name}."),
            "schema": {"type": "string", "minLength": 1},
        }
        for name in re.findall(r"{(\w+)}", path)
    ]


def _query_parameters(route: Route) -> Iterator[JSONSchema]:
    for field in model_fields(route.query):
        schema = field_schema(route.query, field, is_request=False)  # a query string cannot contain null
        parameter = {"name": field.encode_name, "in": "query", "description": schema.pop("description", "")}
        yield parameter | ({"required": True} if field.required else {}) | {"schema": schema}


def _request_body(route: Route) -> JSONSchema:
    content: JSONSchema = {"schema": {"$ref": f"#/components/schemas/{route.body.__name__}"}} if route.body else {}
    if route.examples:
        content["examples"] = {
            title: {"value": msgspec.to_builtins(example)} for title, example in route.examples.items()
        }
    return {
        "description": f"The maximum size is {route.max_body_bytes} bytes.",
        "required": True,
        "content": {"application/json": content},
    }


def _schemas(routes: Sequence[Route]) -> dict[str, JSONSchema]:
    request_types = [route.body for route in routes if route.body]
    response_types = [data for route in routes for data in route.responses.values() if data is not None]
    return components(request_types, [*response_types, Error])
