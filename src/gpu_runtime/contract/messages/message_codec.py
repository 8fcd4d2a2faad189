"""How a message becomes bytes and bytes a message.

JSON with camel case. Every message says its version. A field that is not known is ignored, so that a newer sender may
say more; a version that is not known is refused, because there a newer sender means something else.
"""

from datetime import MAXYEAR, MINYEAR, UTC, datetime
from functools import cache
from typing import Annotated, Any, TypeVar, get_args, get_type_hints

import msgspec
from msgspec import Meta, Struct

from gpu_runtime.contract.errors import Rejected

MESSAGE_VERSION = 1

Instant = Annotated[datetime, Meta(tz=True)]
"""A moment, with its time zone. Clocks of different machines are compared with it: it says when, not in which order."""


# The version is a tag and not a field: a tag is always written, also where defaults are left out.
class Message(
    Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="version", tag=MESSAGE_VERSION
):
    """What one process says to another."""

    def __post_init__(self) -> None:
        _check_timestamps(self)


class MessagePart(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a message. It has the version of the whole."""

    def __post_init__(self) -> None:
        _check_timestamps(self)


class MessageDecodeError(Rejected):
    """Bytes that are no message of the wanted kind. Reading them again will not help."""

    code = "unreadable_message"


M = TypeVar("M", bound=Message)

JSON_DECODE_ERRORS = (ValueError, RecursionError)
"""What the decoder raises over bytes that are malformed, no UTF-8 within a string, or nested too deeply."""


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes, model: type[M]) -> M:
    """The message, or Unreadable with a sentence that says what is wrong with it."""
    try:
        message: M = _decoder(model).decode(data)
    except JSON_DECODE_ERRORS as error:
        raise MessageDecodeError(_decode_error_text(data, model, str(error))) from error
    return message


def to_utc_milliseconds(moment: datetime) -> datetime:
    """The moment in UTC, cut to the millisecond: as precise as clocks of different machines are."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _check_timestamps(said: Struct) -> None:
    """The first and the last year of the calendar cannot be told in every time zone, and have no time after them."""
    for name in _timestamp_fields(type(said)):
        moment = getattr(said, name)
        if moment is not None and not MINYEAR < moment.year < MAXYEAR:
            raise ValueError(f"{name} is {moment}; nobody can reckon with that")


@cache
def _timestamp_fields(kind: type[Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if datetime in (hints[name], *get_args(hints[name])))


class _VersionOnly(Struct):
    version: int | None = None


@cache
def _decoder(model: type[Message]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def _decode_error_text(data: bytes, model: type[Message], error: str) -> str:
    try:
        found = msgspec.json.decode(data, type=_VersionOnly).version
    except JSON_DECODE_ERRORS:
        return f"cannot read this {model.__name__}: {error}"
    if found is not None and found > MESSAGE_VERSION:
        return (
            f"this {model.__name__} has version {found}; this process reads up to version {MESSAGE_VERSION}: upgrade it"
        )
    return f"cannot read this {model.__name__}: {error}"
