"""Builds structural OpenAPI schemas of CRDs from msgspec models.

Types and defaults come from the fields, descriptions from their docstrings.
"""

from msgspec import Struct, inspect

from gpu_runtime.contract.crd.markers import CelRule
from gpu_runtime.contract.model_schema import JSONSchema, default_keyword, object_schema, type_schema, without_null
from gpu_runtime.kube.meta import Condition
from gpu_runtime.process.field_docs import class_doc, field_doc

# Kubernetes defines the fields of a condition, so their descriptions are here and not in a model of the contract.
CONDITION_SCHEMA: JSONSchema = {
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


def struct_schema(model: type[Struct]) -> JSONSchema:
    """Return the schema of a model with the schemas of all nested models, because a CRD cannot refer to schemas."""
    if model is Condition:
        return CONDITION_SCHEMA
    schema: JSONSchema = {"description": class_doc(model)}
    schema |= object_schema(model, lambda field: _field_schema(model, field))
    if rules := getattr(model, "RULES", ()):
        schema["x-kubernetes-validations"] = [_rule(rule) for rule in rules]
    return schema


def _field_schema(model: type[Struct], field: inspect.Field) -> JSONSchema:
    schema: JSONSchema = {"description": ""} | type_schema(without_null(field.type), struct_schema)
    # The docstring of the field is more specific than that of its type.
    description = {"description": field_doc(model, field.name) or schema["description"]}
    return schema | description | default_keyword(field)


def _rule(rule: CelRule) -> JSONSchema:
    validation = {"rule": rule.cel, "message": rule.message}
    return validation | {"fieldPath": f".{rule.field}"} if rule.field else validation
