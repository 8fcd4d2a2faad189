"""Finds unknown and missing fields of a document, at any depth, by comparison with the msgspec model.

The decoder of msgspec ignores unknown fields and stops at the first missing field. These functions find all of them,
with their paths in the document. They are generators, so that the caller decides how many it reads.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import Struct

from gpu_runtime.contract.model_schema import JSONSchema, object_schema, type_schema
from gpu_runtime.contract.validation.field_error import child_path

MAX_SUGGESTED_CHARACTERS = 64
"""Maximum length of an unknown field for which the nearest known field is searched. No field name is that long."""

Document: TypeAlias = Any
"""The result of a JSON or YAML decoder: mappings, lists and scalars."""


@dataclass(frozen=True)
class UnknownField:
    path: str
    key: str
    allowed: tuple[str, ...]

    @property
    def hint(self) -> str:
        return suggest_field(self.key, self.allowed)


@dataclass(frozen=True)
class MissingField:
    path: str


@dataclass(frozen=True)
class ModelShape:
    """The fields of a struct, or the element of a list or mapping. Scalar types are not part of the shape."""

    fields: "Mapping[str, ModelShape]" = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    element: "ModelShape | None" = None
    is_struct: bool = False
    nested: "Mapping[str, ModelShape]" = field(default_factory=dict)
    """The fields whose values are structs, or lists or mappings of structs."""


def has_exact_fields(document: Document, model: type[Struct]) -> bool:
    """Whether the document has all required fields and only known fields. The check is fast: it computes no paths."""
    return _matches_shape(document, shape_of(model))


def _matches_shape(document: Document, shape: ModelShape) -> bool:
    if isinstance(document, list):
        return shape.element is None or all(_matches_shape(each, shape.element) for each in document)
    if not isinstance(document, dict):
        return True
    if not shape.is_struct:
        return shape.element is None or all(_matches_shape(each, shape.element) for each in document.values())
    if not (shape.required <= document.keys() <= shape.fields.keys()):
        return False
    return all(_matches_shape(document[key], inner) for key, inner in shape.nested.items() if key in document)


def unknown_fields(document: Document, model: type[Struct]) -> Iterator[UnknownField]:
    return (each for each in mismatched_fields(document, model) if isinstance(each, UnknownField))


def mismatched_fields(document: Document, model: type[Struct]) -> Iterator[UnknownField | MissingField]:
    """Yield the unknown fields and the missing required fields of each part of the document, in one walk."""
    for path, part, shape in _walk_structs(document, shape_of(model), ""):
        for key in part:
            if key not in shape.fields:
                yield UnknownField(child_path(path, str(key)), str(key), tuple(shape.fields))
        for key in sorted(shape.required - part.keys(), key=tuple(shape.fields).index):
            yield MissingField(child_path(path, key))


def value_at(document: Document, path: str) -> Any:
    """Return the value at a path such as `template.ports[0].port`, or None if the path does not exist."""
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def suggest_field(key: str, allowed: tuple[str, ...]) -> str:
    by_lower = {each.lower(): each for each in allowed}
    is_typo = len(key) <= MAX_SUGGESTED_CHARACTERS
    nearest = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6) if is_typo else []
    if nearest:
        return f"did you mean {by_lower[nearest[0]]}?"
    return f"use one of {', '.join(sorted(allowed))}" if allowed else "none is allowed here"


def choices_at(model: type[Struct], path: str) -> tuple[Any, ...]:
    """Return the allowed values of a field with a Literal type. The result is empty for every other field."""
    schema = _schema(model)
    for step in re.findall(r"[^.\[\]]+", path):
        variants = _variants(schema)
        schema = next(filter(None, (each.get("properties", {}).get(step) or _element(each) for each in variants)), {})
    return tuple(schema.get("enum", ()))


@lru_cache(maxsize=256)
def shape_of(model: type[Struct]) -> ModelShape:
    return _shape(_schema(model))


def _walk_structs(document: Document, shape: ModelShape, path: str) -> Iterator[tuple[str, dict[Any, Any], ModelShape]]:
    """Yield every part of the document that the decoder would convert to a struct. Parents come before children."""
    if isinstance(document, dict):
        if shape.is_struct:
            yield path, document, shape
        for key, value in document.items():
            inner = shape.fields.get(key) if shape.is_struct else shape.element
            if inner is not None:
                yield from _walk_structs(value, inner, child_path(path, str(key)))
    elif isinstance(document, list) and shape.element is not None:
        for index, value in enumerate(document):
            if isinstance(value, dict | list):
                yield from _walk_structs(value, shape.element, f"{path}[{index}]")


def _schema(model: type[Struct]) -> JSONSchema:
    return object_schema(model, lambda each: type_schema(each.type, _schema))


def _variants(schema: JSONSchema) -> Any:
    return schema.get("anyOf", (schema,))


def _element(schema: JSONSchema) -> JSONSchema:
    return schema.get("items") or schema.get("additionalProperties") or {}


_LEAF_SHAPE = ModelShape()


def _shape(schema: JSONSchema) -> ModelShape:
    shapes = map(_variant_shape, _variants(schema))
    return next((shape for shape in shapes if shape != _LEAF_SHAPE), _LEAF_SHAPE)


def _variant_shape(schema: JSONSchema) -> ModelShape:
    if "properties" in schema:
        shapes = {name: _shape(each) for name, each in schema["properties"].items()}
        nested = {name: shape for name, shape in shapes.items() if shape != _LEAF_SHAPE}
        return ModelShape(shapes, frozenset(schema.get("required", ())), is_struct=True, nested=nested)
    element = _shape(_element(schema)) if _element(schema) else _LEAF_SHAPE
    return _LEAF_SHAPE if element == _LEAF_SHAPE else ModelShape(element=element)
