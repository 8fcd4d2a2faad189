"""Decodes request bodies, query strings and path parameters into the structs of a route. Pure functions.

If a request does not match the structs, the functions raise Invalid with the errors by field.

The time for a body is proportional to its size. JSON that is nested too deeply for the decoder is rejected. A field of
type Raw is opaque: the functions check that it is JSON, and build no objects from it. The rest of a body has at most
MAX_STRUCTURED_BYTES.
"""

import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from itertools import islice
from types import MappingProxyType
from typing import Any, TypeVar

import msgspec
from msgspec import Raw

from gpu_runtime.contract.errors import Invalid, TooLarge
from gpu_runtime.contract.validation.field_error import MAX_FIELD_ERRORS, FieldError, child_path
from gpu_runtime.contract.validation.unknown_fields import (
    UnknownField,
    choices_at,
    has_exact_fields,
    mismatched_fields,
    value_at,
)
from gpu_runtime.runtime_api.http.route import Body, Query

B = TypeVar("B", bound=Body)
Q = TypeVar("Q", bound=Query)
S = TypeVar("S", bound=msgspec.Struct)

MAX_CONTAINERS = 4096
"""Maximum number of objects and lists in a body without its opaque fields."""
JSON_WHITESPACE = b" \t\r\n"
MAX_PATH_PARAM_LENGTH = 256
MAX_STRUCTURED_BYTES = 64 * 1024
"""Maximum size of a body without its opaque fields."""
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
    raw = raw.strip(JSON_WHITESPACE)
    document = _parse_json(_without_opaque_fields(raw, model))
    if not isinstance(document, dict):
        raise _invalid("body", f"expected an object, got {_describe_type_of(document)}")
    # Decode the bytes, not the parsed document: fields of type Raw must contain the original bytes.
    return _decode_model(document, model, lambda: _decoder(model).decode(raw), "field")


def decode_query(pairs: Sequence[tuple[str, str]], model: type[Q]) -> Q:
    parameters = dict(pairs)
    if len(parameters) < len(pairs):
        duplicates = _repeated([name for name, _ in pairs])
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


class _ObjectKey:
    """A key of a JSON object. Keys with the same text are different, so that a dict keeps repeated keys."""

    __slots__ = ("text",)

    def __init__(self, text: str) -> None:
        self.text = text


_SKIPPING_DECODER = msgspec.json.Decoder(Raw)
_STRING_PATTERN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"')
_ENTRY_DECODER = msgspec.json.Decoder(dict[_ObjectKey, Raw], dec_hook=lambda _, text: _ObjectKey(text))


def _without_opaque_fields(raw: bytes, model: type[Body]) -> bytes:
    """Return the body with null in place of the opaque values, or the body itself if the model has no such fields."""
    names = _opaque_fields(model)
    if not names or raw[:1] != b"{":
        return raw
    opaque = {*names.values()}
    if len(raw) > MAX_STRUCTURED_BYTES:
        values = _decode_json(lambda: _opaque_decoder(model).decode(raw), raw)
        size = len(raw) - sum(len(bytes(getattr(values, name))) for name in names)
        if size > MAX_STRUCTURED_BYTES:
            text = f"the body without {', '.join(sorted(opaque))} has {size} bytes"
            raise TooLarge(f"{text}; send at most {MAX_STRUCTURED_BYTES}")
    entries: dict[_ObjectKey, Raw] = _decode_json(lambda: _ENTRY_DECODER.decode(raw), raw)
    parts = (
        msgspec.json.encode(key.text) + b":" + (b"null" if key.text in opaque else bytes(value))
        for key, value in entries.items()
    )
    return b"{" + b",".join(parts) + b"}"


@cache
def _opaque_fields(model: type[Body]) -> Mapping[str, str]:
    """Return the names of the opaque fields in JSON, by their names in the model."""
    return {each.name: each.encode_name for each in msgspec.structs.fields(model) if each.type is Raw}


@cache
def _opaque_decoder(model: type[Body]) -> msgspec.json.Decoder[Any]:
    """Return a decoder for the opaque fields alone. It skips all others without building objects."""
    names = _opaque_fields(model)
    fields = [(name, Raw, msgspec.field(default=Raw(), name=names[name])) for name in names]
    return msgspec.json.Decoder(msgspec.defstruct(f"{model.__name__}Opaque", fields))


def _parse_json(raw: bytes) -> Any:
    _reject_many_containers(raw)
    document = _decode_json(lambda: msgspec.json.decode(raw), raw)
    _reject_duplicate_keys(raw)
    return document


def _reject_many_containers(raw: bytes) -> None:
    """Raise Invalid if the body has more objects and lists than any valid body. They take more time than their bytes:
    the garbage collector examines them."""
    if _count_brackets(raw) <= MAX_CONTAINERS:
        return
    _decode_json(lambda: _SKIPPING_DECODER.decode(raw), raw)  # the pattern needs complete strings
    if _count_brackets(_STRING_PATTERN.sub(b"", raw)) > MAX_CONTAINERS:
        raise _invalid("body", f"has more than {MAX_CONTAINERS} objects and lists; send fewer")


def _count_brackets(raw: bytes) -> int:
    return raw.count(b"{") + raw.count(b"[")


def _decode_json(decode: Callable[[], Any], raw: bytes) -> Any:
    try:
        raw.decode()  # the decoder does not check the strings that it skips
        return decode()
    except UnicodeDecodeError as error:
        raise _invalid("body", "is not UTF-8") from error
    except (msgspec.DecodeError, RecursionError) as error:
        text = str(error).replace("JSON is malformed: ", "").partition(" - at")[0]
        text = text.replace("was truncated", f"was truncated (byte {len(raw)})")
        raise _invalid("body", f"is not JSON: {text[:1].lower()}{text[1:]}") from error


def _reject_duplicate_keys(raw: bytes) -> None:
    """Raise Invalid if an object has a key twice. The JSON decoder would silently use the last value."""

    def check_object(pairs: list[tuple[str, Any]]) -> None:
        if len(dict(pairs)) < len(pairs):
            duplicates = sorted(_repeated([key for key, _ in pairs]))
            raise Invalid([FieldError(key, "is given twice in one object") for key in duplicates])

    json.loads(raw, object_pairs_hook=check_object, parse_int=str, parse_float=str)  # only the keys are needed


def _repeated(names: Sequence[str]) -> list[str]:
    return [name for name, count in Counter(names).items() if count > 1]


@cache
def _decoder(model: type[B]) -> msgspec.json.Decoder[B]:
    return msgspec.json.Decoder(model)


def _decode_model(document: dict[str, Any], model: type[S], decode: Callable[[], S], noun: str) -> S:
    """Decode the document. Raises Invalid with unknown and missing fields and the first error of the decoder."""
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
    found = list(islice(mismatched_fields(document, model), MAX_FIELD_ERRORS))
    found.sort(key=lambda each: not isinstance(each, UnknownField))
    return [
        FieldError(
            each.path, f"there is no such {noun}; {each.hint}" if isinstance(each, UnknownField) else "is required"
        )
        for each in found
    ]


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
