"""Builds structural OpenAPI schemas of CRDs from msgspec models.

Types and defaults come from the fields, descriptions from their docstrings.
"""

from typing import Any, TypeAlias

from msgspec import Struct, inspect

from gpu_runtime.contract.crd.markers import CelRule
from gpu_runtime.kube.meta import Condition
from gpu_runtime.process.field_docs import class_doc, field_docs

CRDSchema: TypeAlias = dict[str, Any]

SCALAR_TYPES = {inspect.StrType: "string", inspect.BoolType: "boolean", inspect.IntType: "integer"}

# Kubernetes defines the fields of a condition, so their descriptions are here and not in a model of the contract.
CONDITION_SCHEMA: CRDSchema = {
    "description": "One aspect of the state of the object.",
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        "type": {"description": "Type of the condition, for example Ready.", "type": "string", "maxLength": 316},
        "status": {
            "description": "Whether the condition is true.",
            "type": "string",
            "enum": ["True", "False", "Unknown"],
        },
        "reason": {
            "description": "Reason of the status as one CamelCase word, for programs.",
            "type": "string",
            "maxLength": 1024,
        },
        "message": {
            "description": "Reason of the status as a sentence, for people.",
            "type": "string",
            "maxLength": 32768,
        },
        "lastTransitionTime": {
            "description": "When the status last changed.",
            "type": "string",
            "format": "date-time",
        },
        "observedGeneration": {
            "description": "The metadata.generation that the condition was computed for.",
            "type": "integer",
            "format": "int64",
        },
    },
}


def struct_schema(model: type[Struct]) -> CRDSchema:
    """Return the schema of a model. The properties have the order of the fields."""
    fields = inspect.type_info(model).fields  # type: ignore[attr-defined]
    docs = field_docs(model)
    schema: CRDSchema = {"description": class_doc(model), "type": "object"}
    if required := [field.encode_name for field in fields if field.required]:
        schema["required"] = required
    schema["properties"] = {field.encode_name: _field(field, docs.get(field.name, "")) for field in fields}
    if rules := getattr(model, "RULES", ()):
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in rules]
    return schema


def _field(field: inspect.Field, doc: str) -> CRDSchema:
    schema: CRDSchema = {"description": ""} | _type(field.type)
    schema["description"] = (
        doc or schema["description"]
    )  # the docstring of the field is more specific than that of its type
    if isinstance(field.default, bool | int) or (isinstance(field.default, str) and field.default):
        schema["default"] = field.default
    return schema


def _type(info: inspect.Type) -> CRDSchema:
    match info:
        case inspect.Metadata(type=inner, extra_json_schema=keywords):
            return _type(inner) | (keywords or {})
        case inspect.UnionType(types=types):
            (inner,) = (each for each in types if not isinstance(each, inspect.NoneType))
            return _type(inner)
        case inspect.VarTupleType(item_type=inspect.StructType(cls=cls)) if cls is Condition:
            by_type = {"x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["type"]}
            return {"type": "array", **by_type, "items": CONDITION_SCHEMA}
        case inspect.VarTupleType(item_type=item):
            return {"type": "array", "items": _type(item)}
        case inspect.StructType(cls=cls):
            return struct_schema(cls)
    return {"type": SCALAR_TYPES[type(info)]}


def _rule(rule: CelRule) -> CRDSchema:
    validation = {"rule": rule.cel, "message": rule.message}
    return validation | {"fieldPath": f".{rule.field}"} if rule.field else validation
