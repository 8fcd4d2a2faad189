"""What a caller sent, as the struct that the route takes, or Invalid with everything that is wrong. Pure."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation.field_error import Problem, under
from gpu_runtime.contract.validation.unknown_fields import (
    choices_at,
    is_complete,
    missing_fields,
    unknown_fields,
    value_at,
)
from gpu_runtime.runtime_api.http.route import Body, Query

B = TypeVar("B", bound=Body)
Q = TypeVar("Q", bound=Query)
S = TypeVar("S", bound=msgspec.Struct)

PATH_PART_LIMIT = 256
_KINDS: Mapping[str, str] = MappingProxyType(
    {
        "int": "an integer",
        "float": "a number",
        "str": "a string",
        "bool": "true or false",
        "object": "an object",
        "array": "a list",
        "null": "null",
    }
)


class NoBody(Body, frozen=True, kw_only=True):
    """For routes that take none. An empty object is as good as nothing."""


def read_body(raw: bytes, content_type: str, model: type[B]) -> B:
    """The body as the model. The content type is the caller's, without parameters, or empty."""
    if not raw:
        raise _wrong("body", "is required; send a JSON object")
    if not content_type:
        raise _wrong("Content-Type", "is missing; send the body as application/json")
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise _wrong("Content-Type", f"is {content_type!r}; send the body as application/json")
    document = _parsed(raw)
    if not isinstance(document, dict):
        raise _wrong("body", f"expected an object, got {_kind_of(document)}")
    # From the bytes and not from the document: what a model keeps as it was written is only there.
    return _fitted(document, model, lambda: _decoder(model).decode(raw), "field")


def read_query(pairs: Sequence[tuple[str, str]], model: type[Q]) -> Q:
    given = dict(pairs)
    if len(given) < len(pairs):
        names = [name for name, _ in pairs]
        raise Invalid([Problem(name, "is given more than once") for name in given if names.count(name) > 1])
    return _fitted(given, model, lambda: msgspec.convert(given, model, strict=False), "parameter")


def read_path(parts: Mapping[str, str]) -> Mapping[str, str]:
    """The parts of the path that are in braces, none of which may mean anything but a name."""
    problems = [Problem(name, "is not a name") for name, text in parts.items() if not _is_sane(text)]
    if problems:
        raise Invalid(problems)
    return parts


def _is_sane(text: str) -> bool:
    if not 0 < len(text) <= PATH_PART_LIMIT or text in (".", ".."):
        return False
    return text.isprintable() and text == text.strip()


def _parsed(raw: bytes) -> Any:
    try:
        document = msgspec.json.decode(raw)
        _refuse_twins(raw)
    except UnicodeDecodeError as error:
        raise _wrong("body", "is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        text = str(error).replace("JSON is malformed: ", "").partition(" - at")[0]
        text = text.replace("was truncated", f"was truncated (byte {len(raw)})")
        raise _wrong("body", f"is not JSON: {text[:1].lower()}{text[1:]}") from error
    return document


def _refuse_twins(raw: bytes) -> None:
    """The decoder keeps the last of two values under one key; the caller should say which one is meant."""

    def looked_at(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            keys = [key for key, _ in pairs]
            twins = sorted({key for key in keys if keys.count(key) > 1})
            raise Invalid([Problem(key, "is given twice in one object") for key in twins])

    json.loads(raw, object_pairs_hook=looked_at, parse_int=str, parse_float=str)  # the numbers do not matter here


@cache
def _decoder(model: type[B]) -> msgspec.json.Decoder[B]:
    return msgspec.json.Decoder(model)


def _fitted(document: dict[str, Any], model: type[S], fit: Callable[[], S], what: str) -> S:
    problems = [] if is_complete(document, model) else _misfits(document, model, what)
    try:
        fitted = fit()
    except msgspec.ValidationError as error:
        if "missing required field" not in str(error):  # that is said already
            problems.append(_worded(str(error), document, model))
    if problems:
        raise Invalid(problems)
    return fitted


def _misfits(document: dict[str, Any], model: type, what: str) -> list[Problem]:
    unknown = [
        Problem(each.path, f"there is no such {what}; {each.remedy}") for each in unknown_fields(document, model)
    ]
    return unknown + [Problem(path, "is required") for path in missing_fields(document, model)]


def _worded(error: str, document: Any, model: type) -> Problem:
    """The decoder's words with the field's path in front."""
    text, _, place = error.partition(" - at `$")
    path = place.rstrip("`").lstrip(".")
    if key := re.search(r" - at `key` in `\$(.*)`$", error):
        path = under(key[1].lstrip("."), "(a key)")
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, choices_at(model, path)))
        return Problem(path, f"{value_at(document, path)!r} is not one of {choices}")
    worded = re.sub(r"`([a-z |]+)`", lambda found: _named(found[1]), text)
    return Problem(path or "body", worded[:1].lower() + worded[1:])


def _named(kinds: str) -> str:
    return " or ".join(_KINDS.get(kind, kind) for kind in kinds.split(" | "))


def _kind_of(value: Any) -> str:
    for kind, name in ((bool, "bool"), (str, "str"), (list, "array"), (int, "int"), (float, "float")):
        if isinstance(value, kind):
            return _KINDS[name]
    return "null"


def _wrong(field: str, text: str) -> Invalid:
    return Invalid([Problem(field, text)])
