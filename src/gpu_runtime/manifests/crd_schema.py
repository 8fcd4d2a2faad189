"""Structural OpenAPI schemas from models: types and defaults from the fields, descriptions from their docstrings."""

from typing import Any, TypeAlias

from msgspec import Struct, inspect

from gpu_runtime.contract.crd.markers import CelRule
from gpu_runtime.kube.meta import Condition
from gpu_runtime.process.field_docs import class_doc, field_docs

CRDSchema: TypeAlias = dict[str, Any]

SCALAR_TYPES = {inspect.StrType: "string", inspect.BoolType: "boolean", inspect.IntType: "integer"}

# Kubernetes' own shape of a condition, which is why its fields are described here and not in a model of ours.
CONDITION_SCHEMA: CRDSchema = {
    "description": "One aspect of the object's state.",
    "type": "object",
    "required": ["type", "status"],
    "properties": {
        "type": {"description": "The aspect, for example Ready.", "type": "string", "maxLength": 316},
        "status": {"description": "Whether it holds.", "type": "string", "enum": ["True", "False", "Unknown"]},
        "reason": {"description": "Why, as one word for programs.", "type": "string", "maxLength": 1024},
        "message": {"description": "Why, as a sentence for people.", "type": "string", "maxLength": 32768},
        "lastTransitionTime": {
            "description": "When status last changed.",
            "type": "string",
            "format": "date-time",
        },
        "observedGeneration": {
            "description": "The generation of the spec that the condition speaks of.",
            "type": "integer",
            "format": "int64",
        },
    },
}


def struct_schema(model: type[Struct]) -> CRDSchema:
    """The schema of a model, with its fields in the order in which the model has them."""
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
    schema["description"] = doc or schema["description"]  # what the field is says more than what its type is
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
    written = {"rule": rule.cel, "message": rule.message}
    return written | {"fieldPath": f".{rule.field}"} if rule.field else written
