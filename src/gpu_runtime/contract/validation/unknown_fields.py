"""Finds unknown and missing fields of a document, at any depth, by comparison with the msgspec model.

The decoder of msgspec ignores unknown fields and stops at the first missing field. These functions report all of them
at once, with their paths in the document.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import inspect

from gpu_runtime.contract.validation.field_error import child_path

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
class ModelShape:
    """The fields of a struct, or the element of a list or mapping. Scalar types are not part of the shape."""

    fields: "Mapping[str, ModelShape]"
    required: frozenset[str] = frozenset()
    element: "ModelShape | None" = None
    is_struct: bool = False
    nested: "Mapping[str, ModelShape]" = field(default_factory=dict)
    """The fields whose values are structs, or lists or mappings of structs."""


def has_exact_fields(document: Document, model: type) -> bool:
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


def unknown_fields(document: Document, model: type) -> Iterator[UnknownField]:
    for path, part, shape in _walk_structs(document, shape_of(model), ""):
        for key in part:
            if key not in shape.fields:
                yield UnknownField(child_path(path, str(key)), str(key), tuple(shape.fields))


def missing_fields(document: Document, model: type) -> Iterator[str]:
    """Yield the paths of required fields that the document lacks."""
    for path, part, shape in _walk_structs(document, shape_of(model), ""):
        for key in sorted(shape.required - part.keys(), key=tuple(shape.fields).index):
            yield child_path(path, key)


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
    nearest = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {by_lower[nearest[0]]}?"
    return f"use one of {', '.join(sorted(allowed))}" if allowed else "none is allowed here"


def choices_at(model: type, path: str) -> tuple[Any, ...]:
    """Return the allowed values of a field with a Literal type. The result is empty for every other field."""
    info: inspect.Type | None = inspect.type_info(model)
    for step in re.findall(r"[^.\[\]]+", path):
        info = _inner_type(info, step) if info is not None else None
    return info.values if isinstance(info, inspect.LiteralType) else ()


@lru_cache(maxsize=256)
def shape_of(model: type) -> ModelShape:
    return _shape(inspect.type_info(model))


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
            yield from _walk_structs(value, shape.element, f"{path}[{index}]")


_LEAF_SHAPE = ModelShape({})


def _shape(info: inspect.Type) -> ModelShape:
    match info:
        case inspect.StructType(fields=fields):
            shapes = {each.encode_name: _shape(each.type) for each in fields}
            required = frozenset(each.encode_name for each in fields if each.required)
            nested = {name: shape for name, shape in shapes.items() if shape != _LEAF_SHAPE}
            return ModelShape(shapes, required, is_struct=True, nested=nested)
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.UnionType(types=types):
            return next((shape for shape in map(_shape, types) if shape != _LEAF_SHAPE), _LEAF_SHAPE)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return _collection_shape(inner)
        case inspect.DictType(value_type=inner):
            return _collection_shape(inner)
    return _LEAF_SHAPE


def _collection_shape(item: inspect.Type) -> ModelShape:
    """Return the shape of a list or mapping. It is a leaf if the items have no fields to check."""
    inner = _shape(item)
    return _LEAF_SHAPE if inner == _LEAF_SHAPE else ModelShape({}, element=inner)


def _inner_type(info: inspect.Type, step: str) -> inspect.Type | None:
    match info:
        case inspect.StructType(fields=fields):
            return next((each.type for each in fields if each.encode_name == step), None)
        case inspect.Metadata(type=inner):
            return _inner_type(inner, step)
        case inspect.UnionType(types=types):
            return next(filter(None, (_inner_type(each, step) for each in types)), None)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return inner
        case inspect.DictType(value_type=inner):
            return inner
    return None
