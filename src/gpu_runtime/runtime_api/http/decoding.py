"""Decodes request bodies, query strings and path parameters into the structs of a route. Pure functions.

If a request does not match the structs, the functions raise Invalid with the errors by field.
"""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.validation.field_error import FieldError, child_path
from gpu_runtime.contract.validation.unknown_fields import (
    choices_at,
    has_exact_fields,
    missing_fields,
    unknown_fields,
    value_at,
)
from gpu_runtime.runtime_api.http.route import Body, Query

B = TypeVar("B", bound=Body)
Q = TypeVar("Q", bound=Query)
S = TypeVar("S", bound=msgspec.Struct)

MAX_PATH_PARAM_LENGTH = 256
_JSON_TYPE_NAMES: Mapping[str, str] = MappingProxyType(
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
    """The body of a route that needs no body. The caller may send an empty JSON object or no body."""


def decode_body(raw: bytes, content_type: str, model: type[B]) -> B:
    """Decode the body. `content_type` is the media type of the request without parameters, or empty."""
    if not raw:
        raise _invalid("body", "is required; send a JSON object")
    if not content_type:
        raise _invalid("Content-Type", "is missing; send the body as application/json")
    if content_type != "application/json" and not content_type.endswith("+json"):
        raise _invalid("Content-Type", f"is {content_type!r}; send the body as application/json")
    document = _parse_json(raw)
    if not isinstance(document, dict):
        raise _invalid("body", f"expected an object, got {_describe_type_of(document)}")
    # Decode the bytes, not the parsed document: fields of type Raw must contain the original bytes.
    return _decode_model(document, model, lambda: _decoder(model).decode(raw), "field")


def decode_query(pairs: Sequence[tuple[str, str]], model: type[Q]) -> Q:
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        names = [name for name, _ in pairs]
        duplicates = [name for name in parameters if names.count(name) > 1]
        raise Invalid([FieldError(name, "is given more than once; send it once") for name in duplicates])
    return _decode_model(parameters, model, lambda: msgspec.convert(parameters, model, strict=False), "parameter")


def validate_path_params(parameters: Mapping[str, str]) -> Mapping[str, str]:
    """Return the path parameters, or raise Invalid if one of them cannot be a name, for example `..`."""
    message = f"is not a name; use 1 to {MAX_PATH_PARAM_LENGTH} printable characters without spaces around them"
    problems = [FieldError(name, message) for name, text in parameters.items() if not _is_valid_path_param(text)]
    if problems:
        raise Invalid(problems)
    return parameters


def _is_valid_path_param(text: str) -> bool:
    if not 0 < len(text) <= MAX_PATH_PARAM_LENGTH or text in (".", ".."):
        return False
    return text.isprintable() and text == text.strip()


def _parse_json(raw: bytes) -> Any:
    try:
        document = msgspec.json.decode(raw)
        _reject_duplicate_keys(raw)
    except UnicodeDecodeError as error:
        raise _invalid("body", "is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        text = str(error).replace("JSON is malformed: ", "").partition(" - at")[0]
        text = text.replace("was truncated", f"was truncated (byte {len(raw)})")
        raise _invalid("body", f"is not JSON: {text[:1].lower()}{text[1:]}") from error
    return document


def _reject_duplicate_keys(raw: bytes) -> None:
    """Raise Invalid if an object has a key twice. The JSON decoder would silently use the last value."""

    def check_object(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            keys = [key for key, _ in pairs]
            duplicates = sorted({key for key in keys if keys.count(key) > 1})
            raise Invalid([FieldError(key, "is given twice in one object") for key in duplicates])

    json.loads(raw, object_pairs_hook=check_object, parse_int=str, parse_float=str)  # only the keys are needed


@cache
def _decoder(model: type[B]) -> msgspec.json.Decoder[B]:
    return msgspec.json.Decoder(model)


def _decode_model(document: dict[str, Any], model: type[S], decode: Callable[[], S], noun: str) -> S:
    """Decode the document. Raises Invalid with all unknown and missing fields and the first error of the decoder."""
    problems = [] if has_exact_fields(document, model) else _unknown_and_missing_fields(document, model, noun)
    try:
        decoded = decode()
    except msgspec.ValidationError as error:
        if "missing required field" not in str(error):  # _unknown_and_missing_fields has reported it
            problems.append(_problem_from_validation_error(str(error), document, model))
    if problems:
        raise Invalid(problems)
    return decoded


def _unknown_and_missing_fields(document: dict[str, Any], model: type, noun: str) -> list[FieldError]:
    unknown = [
        FieldError(each.path, f"there is no such {noun}; {each.hint}") for each in unknown_fields(document, model)
    ]
    return unknown + [FieldError(path, "is required") for path in missing_fields(document, model)]


def _problem_from_validation_error(error: str, document: Any, model: type) -> FieldError:
    """Convert an error message of the decoder to a FieldError with the field's path and the names of JSON types."""
    text, _, location = error.partition(" - at `$")
    path = location.rstrip("`").lstrip(".")
    if key := re.search(r" - at `key` in `\$(.*)`$", error):
        path = child_path(key[1].lstrip("."), "(a key)")
    if text.startswith("Invalid enum value"):
        choices = ", ".join(map(str, choices_at(model, path)))
        return FieldError(path, f"{value_at(document, path)!r} is not one of {choices}")
    message = re.sub(r"`([a-z |]+)`", lambda match: _describe_types(match[1]), text)
    return FieldError(path or "body", message[:1].lower() + message[1:])


def _describe_types(kinds: str) -> str:
    return " or ".join(_JSON_TYPE_NAMES.get(kind, kind) for kind in kinds.split(" | "))


def _describe_type_of(value: Any) -> str:
    for kind, name in ((bool, "bool"), (str, "str"), (list, "array"), (int, "int"), (float, "float")):
        if isinstance(value, kind):
            return _JSON_TYPE_NAMES[name]
    return "null"


def _invalid(field: str, text: str) -> Invalid:
    return Invalid([FieldError(field, text)])
