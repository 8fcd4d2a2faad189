"""Encoding and decoding of messages: JSON with camel-case names and a version.

The decoder ignores unknown fields, so that a newer sender can add fields. It rejects an unknown version, because a
newer sender increases the version when the meaning of existing fields changes.
"""

from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from gpu_runtime.contract.errors import Rejected

MESSAGE_VERSION = 1

Instant = Annotated[datetime, Meta(tz=True)]
"""A point in time with its time zone.

The clocks of machines differ. So instants from two machines do not prove which event happened first.
"""


# The version is a tag and not a field: with `omit_defaults`, the encoder would omit the field, but it writes the tag.
class Message(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="version", tag=MESSAGE_VERSION
):
    """The base class of all messages."""

    def __post_init__(self) -> None:
        _check_timestamps(self)


class MessagePart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """The base class of structs inside a message. They have no version of their own."""

    def __post_init__(self) -> None:
        _check_timestamps(self)


class MessageDecodeError(Rejected):
    """The bytes are not a valid message of the expected type. A retry cannot succeed."""

    code = "unreadable_message"


M = TypeVar("M", bound=Message)

JSON_DECODE_ERRORS = (ValueError, RecursionError)
"""The errors that the decoder raises for malformed JSON, invalid UTF-8 in a string, and too deeply nested JSON."""


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes, model: type[M]) -> M:
    """Decode a message. Raises MessageDecodeError with the reason."""
    try:
        message: M = _decoder(model).decode(data)
    except JSON_DECODE_ERRORS as error:
        raise MessageDecodeError(_decode_error_text(data, model, str(error))) from error
    return message


def to_utc_milliseconds(time: datetime) -> datetime:
    """Return the time in UTC, truncated to milliseconds. Clocks of different machines do not agree more precisely."""
    time = time.astimezone(UTC)
    return time.replace(microsecond=time.microsecond // 1000 * 1000)


def _check_timestamps(part: Struct) -> None:
    """Reject times in the years 1 and 9999. A conversion to another time zone or an added timeout could overflow."""
    for name in _timestamp_fields(type(part)):
        time = getattr(part, name)
        if time is not None and not MINYEAR < time.year < MAXYEAR:
            raise ValueError(f"{name} is {time}; use a year between {MINYEAR + 1} and {MAXYEAR - 1}")


@cache
def _timestamp_fields(struct: type[Struct]) -> tuple[str, ...]:
    hints = get_type_hints(struct)
    return tuple(name for name in struct.__struct_fields__ if datetime in (hints[name], *get_args(hints[name])))


class _VersionOnly(Struct):
    version: int | None = None


@cache
def _decoder(model: type[Message]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def _decode_error_text(data: bytes, model: type[Message], error: str) -> str:
    try:
        version = msgspec.json.decode(data, type=_VersionOnly).version
    except JSON_DECODE_ERRORS:
        return f"cannot read this {model.__name__}: {error}"
    if version is not None and version > MESSAGE_VERSION:
        return (
            f"this {model.__name__} has version {version}; this process reads up to version {MESSAGE_VERSION}:"
            " upgrade the process"
        )
    return f"cannot read this {model.__name__}: {error}"
