"""Generates the JSON Schemas of request and response bodies from their models. Pure functions.

Request schemas reject unknown fields at every depth. Response schemas allow them, because a later version may add
fields.
"""

from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

from msgspec import NODEFAULT, Struct, inspect

from gpu_runtime.process.field_docs import class_doc, field_doc

JSONSchema: TypeAlias = dict[str, Any]

NUMBER_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
STRING_KEYWORDS = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
ARRAY_KEYWORDS = {"min_length": "minItems", "max_length": "maxItems"}
OBJECT_KEYWORDS = {"min_length": "minProperties", "max_length": "maxProperties"}

SCALAR_SCHEMAS: dict[type[inspect.Type], tuple[JSONSchema, dict[str, str]]] = {
    inspect.AnyType: ({}, {}),
    inspect.BoolType: ({"type": "boolean"}, {}),
    inspect.DateTimeType: ({"type": "string", "format": "date-time"}, {}),
    inspect.FloatType: ({"type": "number"}, NUMBER_KEYWORDS),
    inspect.IntType: ({"type": "integer"}, NUMBER_KEYWORDS),
    inspect.NoneType: ({"type": "null"}, {}),
    inspect.RawType: ({}, {}),
    inspect.StrType: ({"type": "string"}, STRING_KEYWORDS),
}


def components(request_types: Iterable[Any], response_types: Iterable[Any]) -> dict[str, JSONSchema]:
    """Return the schemas of all structs in these types, sorted by name. Structs of requests reject unknown fields."""
    request_models = set(_structs(request_types))
    models = request_models | set(_structs(response_types))
    return _schemas_by_name((model, struct_schema(model, is_request=model in request_models)) for model in models)


def struct_schema(model: type[Struct], is_request: bool) -> JSONSchema:
    """Return the schema of a struct, with the fields in the order of their declaration."""
    schema: JSONSchema = {"description": class_doc(model)} if class_doc(model) else {}
    schema["type"] = "object"
    if required := [field.encode_name for field in _fields(model) if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: field_schema(model, field, is_request) for field in _fields(model)}
    return schema | {"additionalProperties": False} if is_request else schema


def field_schema(model: type[Struct], field: inspect.Field, is_request: bool) -> JSONSchema:
    info = field.type
    if field.default is None and not is_request:
        info = without_null(info)  # responses omit defaults, so null never occurs in them
    schema = _with_default(type_schema(info), field.default)
    if doc := field_doc(model, field.name):
        schema = {"description": doc} | {key: value for key, value in schema.items() if key != "description"}
    return schema


def schema_of(kind: Any) -> JSONSchema:
    return type_schema(inspect.type_info(kind))


def type_schema(info: inspect.Type) -> JSONSchema:  # noqa: PLR0911 - one return per kind of type
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=keywords):
            return type_schema(inner) | _without_kubernetes_keywords(keywords or {})
        case inspect.StructType(cls=cls):
            return {"$ref": f"#/components/schemas/{cls.__name__}"}
        case inspect.UnionType(types=types):
            return {"anyOf": [type_schema(each) for each in types]} if len(types) > 1 else type_schema(types[0])
        case inspect.LiteralType(values=values):
            return _enum_schema(values)
        case inspect.EnumType(cls=cls):
            return _enum_schema(member.value for member in cls)
        case inspect.CollectionType(item_type=item):
            return {"type": "array", "items": type_schema(item)} | _constraint_keywords(info, ARRAY_KEYWORDS)
        case inspect.DictType(value_type=value):
            return {"type": "object", "additionalProperties": type_schema(value)} | _constraint_keywords(
                info, OBJECT_KEYWORDS
            )
    schema, limits = SCALAR_SCHEMAS[type(info)]
    return schema | _constraint_keywords(info, limits)


def without_null(info: inspect.Type) -> inspect.Type:
    match info:
        case inspect.UnionType(types=types):
            return inspect.UnionType(tuple(each for each in types if not isinstance(each, inspect.NoneType)))
    return info


def _fields(model: type[Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(model)
    return info.fields if isinstance(info, inspect.StructType) else ()


def _enum_schema(values: Iterable[Any]) -> JSONSchema:
    choices = list(values)
    return ({"type": "string"} if all(isinstance(each, str) for each in choices) else {}) | {"enum": choices}


def _constraint_keywords(info: inspect.Type, names: dict[str, str]) -> JSONSchema:
    constraints = {keyword: getattr(info, name) for name, keyword in names.items()}
    return {keyword: limit for keyword, limit in constraints.items() if limit is not None}


def _without_kubernetes_keywords(keywords: JSONSchema) -> JSONSchema:
    """Remove the keywords that only the Kubernetes API server understands."""
    return {keyword: value for keyword, value in keywords.items() if not keyword.startswith("x-kubernetes-")}


def _with_default(schema: JSONSchema, default: Any) -> JSONSchema:
    """Add the default. An empty string means that the field is not set, so the pattern must allow an empty string."""
    if default == "" and "pattern" in schema:
        return schema | {"pattern": f"^$|{schema['pattern']}"}
    if default is NODEFAULT or not isinstance(default, bool | int | float | str) or default == "":
        return schema
    return schema | {"default": getattr(default, "value", default)}


def _structs(kinds: Iterable[Any]) -> Iterator[type[Struct]]:
    """Yield every struct that occurs in these types, at any depth."""
    pending = list(inspect.multi_type_info(kinds))
    seen: set[type[Struct]] = set()
    while pending:
        info = pending.pop()
        if isinstance(info, inspect.StructType):
            if info.cls in seen:
                continue
            seen.add(info.cls)
            yield info.cls
        pending.extend(_nested_types(info))


def _nested_types(info: inspect.Type) -> Iterable[inspect.Type]:
    match info:
        case inspect.Metadata(type=inner):
            return (inner,)
        case inspect.UnionType(types=types):
            return types
        case inspect.CollectionType(item_type=item):
            return (item,)
        case inspect.DictType(value_type=value):
            return (value,)
        case inspect.StructType(fields=fields):
            return tuple(field.type for field in fields)
    return ()


def _schemas_by_name(models: Iterable[tuple[type[Struct], JSONSchema]]) -> dict[str, JSONSchema]:
    named: dict[str, tuple[type[Struct], JSONSchema]] = {}
    for model, schema in models:
        other, _ = named.setdefault(model.__name__, (model, schema))
        if other is not model:
            raise ValueError(f"{other.__module__} and {model.__module__} both have a {model.__name__}: rename one")
    return {name: named[name][1] for name in sorted(named)}
