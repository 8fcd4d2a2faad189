"""Which fields a document may and must have, at any depth, compared with the model it is to become.

The decoder itself ignores what it does not know and stops at the first thing that is missing. Here everything is named
at once, in the spelling of whoever wrote the document.
"""

import difflib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, TypeAlias

from msgspec import inspect

from gpu_runtime.contract.validation.field_error import under

Document: TypeAlias = Any
"""What a JSON or YAML decoder gives: mappings, lists and plain values."""


@dataclass(frozen=True)
class Unknown:
    path: str
    key: str
    known: tuple[str, ...]

    @property
    def remedy(self) -> str:
        return suggestion(self.key, self.known)


@dataclass(frozen=True)
class Shape:
    """What is known of a part of a model: its fields where it is a struct, its elements where it holds many."""

    fields: "Mapping[str, Shape]"
    required: frozenset[str] = frozenset()
    element: "Shape | None" = None
    is_struct: bool = False
    inner: "Mapping[str, Shape]" = field(default_factory=dict)
    """Those of its fields that have something inside."""


def is_complete(document: Document, model: type) -> bool:
    """Whether nothing is unknown or missing: the quick answer for the usual case, in which nobody needs the paths."""
    return _fits(document, shape_of(model))


def _fits(document: Document, shape: Shape) -> bool:
    if isinstance(document, list):
        return shape.element is None or all(_fits(each, shape.element) for each in document)
    if not isinstance(document, dict):
        return True
    if not shape.is_struct:
        return shape.element is None or all(_fits(each, shape.element) for each in document.values())
    if not (shape.required <= document.keys() <= shape.fields.keys()):
        return False
    return all(_fits(document[key], inner) for key, inner in shape.inner.items() if key in document)


def unknown_fields(document: Document, model: type) -> Iterator[Unknown]:
    for path, part, shape in _structs(document, shape_of(model), ""):
        for key in part:
            if key not in shape.fields:
                yield Unknown(under(path, str(key)), str(key), tuple(shape.fields))


def missing_fields(document: Document, model: type) -> Iterator[str]:
    """The paths of what the model demands and the document does not have."""
    for path, part, shape in _structs(document, shape_of(model), ""):
        for key in sorted(shape.required - part.keys(), key=tuple(shape.fields).index):
            yield under(path, key)


def value_at(document: Document, path: str) -> Any:
    """What stands at a path such as `template.ports[0].port`; None where nothing does."""
    for step in re.findall(r"[^.\[\]]+", path):
        if isinstance(document, dict):
            document = document.get(step)
        elif isinstance(document, list) and step.isdecimal() and int(step) < len(document):
            document = document[int(step)]
        else:
            return None
    return document


def suggestion(key: str, known: tuple[str, ...]) -> str:
    by_lower = {each.lower(): each for each in known}
    nearest = difflib.get_close_matches(key.lower(), by_lower, n=1, cutoff=0.6)
    if nearest:
        return f"did you mean {by_lower[nearest[0]]}?"
    return f"there are {', '.join(sorted(known))}" if known else "there is none"


def choices_at(model: type, path: str) -> tuple[Any, ...]:
    """The values that a field may have, where the model lists them."""
    info: inspect.Type | None = inspect.type_info(model)
    for step in re.findall(r"[^.\[\]]+", path):
        info = _inner(info, step) if info is not None else None
    return info.values if isinstance(info, inspect.LiteralType) else ()


@lru_cache(maxsize=256)
def shape_of(model: type) -> Shape:
    return _shape(inspect.type_info(model))


def _structs(document: Document, shape: Shape, path: str) -> Iterator[tuple[str, dict[Any, Any], Shape]]:
    """Every part of the document that is to become a struct, the outer ones first."""
    if isinstance(document, dict):
        if shape.is_struct:
            yield path, document, shape
        for key, value in document.items():
            inner = shape.fields.get(key) if shape.is_struct else shape.element
            if inner is not None:
                yield from _structs(value, inner, under(path, str(key)))
    elif isinstance(document, list) and shape.element is not None:
        for index, value in enumerate(document):
            yield from _structs(value, shape.element, f"{path}[{index}]")


_LEAF = Shape({})


def _shape(info: inspect.Type) -> Shape:
    match info:
        case inspect.StructType(fields=fields):
            known = {each.encode_name: _shape(each.type) for each in fields}
            required = frozenset(each.encode_name for each in fields if each.required)
            inner = {name: shape for name, shape in known.items() if shape != _LEAF}
            return Shape(known, required, is_struct=True, inner=inner)
        case inspect.Metadata(type=inner):
            return _shape(inner)
        case inspect.UnionType(types=types):
            return next((found for found in map(_shape, types) if found != _LEAF), _LEAF)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return _many(inner)
        case inspect.DictType(value_type=inner):
            return _many(inner)
    return _LEAF


def _many(item: inspect.Type) -> Shape:
    """A list or a mapping of such things; a leaf where there is nothing to look for inside."""
    inner = _shape(item)
    return _LEAF if inner == _LEAF else Shape({}, element=inner)


def _inner(info: inspect.Type, step: str) -> inspect.Type | None:
    match info:
        case inspect.StructType(fields=fields):
            return next((each.type for each in fields if each.encode_name == step), None)
        case inspect.Metadata(type=inner):
            return _inner(inner, step)
        case inspect.UnionType(types=types):
            return next(filter(None, (_inner(each, step) for each in types)), None)
        case inspect.ListType(item_type=inner) | inspect.VarTupleType(item_type=inner):
            return inner
        case inspect.DictType(value_type=inner):
            return inner
    return None
