"""Generates the JSON Schemas of request and response bodies from their models. Pure functions.

Request schemas reject unknown fields at every depth. Response schemas allow them, because a later version may add
fields.
"""

from collections.abc import Iterable
from typing import Any

from msgspec import Struct, inspect

from gpu_runtime.contract.model_schema import (
    JSONSchema,
    default_keyword,
    model_fields,
    object_schema,
    type_schema,
    without_null,
)
from gpu_runtime.process.field_docs import class_doc, field_doc


def components(request_types: Iterable[Any], response_types: Iterable[Any]) -> dict[str, JSONSchema]:
    """Return the schemas of all structs in these types, sorted by name. Structs of requests reject unknown fields."""
    request_models = _structs(request_types)
    models: dict[str, type[Struct]] = {}
    for model in request_models | _structs(response_types):
        other = models.setdefault(model.__name__, model)
        if other is not model:
            raise ValueError(f"{other.__module__} and {model.__module__} both have a {model.__name__}: rename one")
    return {name: struct_schema(models[name], models[name] in request_models) for name in sorted(models)}


def struct_schema(model: type[Struct], is_request: bool) -> JSONSchema:
    description = {"description": class_doc(model)} if class_doc(model) else {}
    schema = description | object_schema(model, lambda field: field_schema(model, field, is_request))
    return schema | {"additionalProperties": False} if is_request else schema


def field_schema(model: type[Struct], field: inspect.Field, is_request: bool) -> JSONSchema:
    # Responses omit defaults, so null never occurs in them.
    info = without_null(field.type) if field.default is None and not is_request else field.type
    schema = _portable_schema(info) | default_keyword(field)
    if field.default == "" and "pattern" in schema:
        schema["pattern"] = f"^$|{schema['pattern']}"  # an empty string means that the field is not set
    if doc := field_doc(model, field.name):
        schema = {"description": doc} | schema | {"description": doc}
    return schema


def schema_of(kind: Any) -> JSONSchema:
    return _portable_schema(inspect.type_info(kind))


def _portable_schema(info: inspect.Type) -> JSONSchema:
    schema: JSONSchema = _portable(type_schema(info, lambda model: {"$ref": f"#/components/schemas/{model.__name__}"}))
    return schema


def _portable(schema: Any) -> Any:
    """Remove the keywords that only the Kubernetes API server understands, at any depth."""
    match schema:
        case dict():
            return {key: _portable(value) for key, value in schema.items() if not key.startswith("x-kubernetes-")}
        case list():
            return [_portable(each) for each in schema]
    return schema


def _structs(kinds: Iterable[Any]) -> set[type[Struct]]:
    """Return every struct that occurs in these types, at any depth."""
    found: set[type[Struct]] = set()

    def collect(model: type[Struct]) -> JSONSchema:
        if model not in found:
            found.add(model)
            for field in model_fields(model):
                type_schema(field.type, collect)
        return {}

    for info in inspect.multi_type_info(kinds):
        type_schema(info, collect)
    return found
