"""Converts msgspec models to JSON Schemas. This is the only walk over the type information of msgspec.

The OpenAPI document refers to nested structs. The CRDs and the check for unknown fields contain them. So every caller
passes a function that returns the schema of a nested struct.
"""

from collections.abc import Callable, Iterable
from typing import Any, TypeAlias

from msgspec import Struct, inspect

JSONSchema: TypeAlias = dict[str, Any]
StructSchema: TypeAlias = Callable[[type[Struct]], JSONSchema]

_NUMBER_KEYWORDS = {"ge": "minimum", "gt": "exclusiveMinimum", "le": "maximum", "lt": "exclusiveMaximum"}
_STRING_KEYWORDS = {"min_length": "minLength", "max_length": "maxLength", "pattern": "pattern"}
_ARRAY_KEYWORDS = {"min_length": "minItems", "max_length": "maxItems"}
_OBJECT_KEYWORDS = {"min_length": "minProperties", "max_length": "maxProperties"}

_SCALAR_SCHEMAS: dict[type[inspect.Type], tuple[JSONSchema, dict[str, str]]] = {
    inspect.AnyType: ({}, {}),
    inspect.BoolType: ({"type": "boolean"}, {}),
    inspect.DateTimeType: ({"type": "string", "format": "date-time"}, {}),
    inspect.FloatType: ({"type": "number"}, _NUMBER_KEYWORDS),
    inspect.DateTimeType: ({"type": "string", "format": "date-time"}, {}),
    inspect.IntType: ({"type": "integer"}, _NUMBER_KEYWORDS),
    inspect.NoneType: ({"type": "null"}, {}),
    inspect.RawType: ({}, {}),
    inspect.StrType: ({"type": "string"}, _STRING_KEYWORDS),
}


def type_schema(info: inspect.Type, struct_schema: StructSchema) -> JSONSchema:  # noqa: PLR0911 - one per kind of type
    """Return the schema of a type. Raises KeyError for a type that no model of the project may use."""
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=keywords):
            return type_schema(inner, struct_schema) | (keywords or {})
        case inspect.StructType(cls=cls):
            return struct_schema(cls)
        case inspect.UnionType(types=types):
            schemas = [type_schema(each, struct_schema) for each in types]
            return {"anyOf": schemas} if len(schemas) > 1 else schemas[0]
        case inspect.LiteralType(values=values):
            return _enum_schema(values)
        case inspect.EnumType(cls=cls):
            return _enum_schema(member.value for member in cls)
        case inspect.CollectionType(item_type=item):
            schema = {"type": "array", "items": type_schema(item, struct_schema)}
            return schema | _constraints(info, _ARRAY_KEYWORDS)
        case inspect.DictType(value_type=value):
            schema = {"type": "object", "additionalProperties": type_schema(value, struct_schema)}
            return schema | _constraints(info, _OBJECT_KEYWORDS)
    schema, limits = _SCALAR_SCHEMAS[type(info)]
    return schema | _constraints(info, limits)


def object_schema(model: type[Struct], field_schema: Callable[[inspect.Field], JSONSchema]) -> JSONSchema:
    """Return the schema of a struct. The properties have the order of the fields."""
    fields = model_fields(model)
    required = [field.encode_name for field in fields if field.required]
    schema: JSONSchema = {"type": "object"} | ({"required": required} if required else {})
    return schema | {"properties": {field.encode_name: field_schema(field) for field in fields}}


def model_fields(model: type[Struct]) -> tuple[inspect.Field, ...]:
    info = inspect.type_info(model)
    return info.fields if isinstance(info, inspect.StructType) else ()


def without_null(info: inspect.Type) -> inspect.Type:
    match info:
        case inspect.UnionType(types=types):
            return inspect.UnionType(tuple(each for each in types if not isinstance(each, inspect.NoneType)))
    return info


def default_keyword(field: inspect.Field) -> JSONSchema:
    """Return the default of a field. An empty string is no default: it means that the field is not set."""
    default = field.default
    if isinstance(default, bool | int | float | str) and default != "":
        return {"default": getattr(default, "value", default)}
    return {}


def _enum_schema(values: Iterable[Any]) -> JSONSchema:
    choices = list(values)
    return ({"type": "string"} if all(isinstance(each, str) for each in choices) else {}) | {"enum": choices}


def _constraints(info: inspect.Type, keywords: dict[str, str]) -> JSONSchema:
    limits = {keyword: getattr(info, name) for name, keyword in keywords.items()}
    return {keyword: limit for keyword, limit in limits.items() if limit is not None}
