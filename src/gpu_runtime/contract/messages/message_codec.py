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

VERSION = 1

Instant = Annotated[datetime, Meta(tz=True)]
"""A moment, with its time zone. Clocks of different machines are compared with it: it says when, not in which order."""


# The version is a tag and not a field: a tag is always written, also where defaults are left out.
class Message(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True, tag_field="version", tag=VERSION):
    """What one process says to another."""

    def __post_init__(self) -> None:
        _check_moments(self)


class Part(Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """A part of a message. It has the version of the whole."""

    def __post_init__(self) -> None:
        _check_moments(self)


class Unreadable(Rejected):
    """Bytes that are no message of the wanted kind. Reading them again will not help."""

    code = "unreadable_message"


M = TypeVar("M", bound=Message)

NOT_JSON = (ValueError, RecursionError)
"""What the decoder raises over bytes that are malformed, no UTF-8 within a string, or nested too deeply."""


def encode(message: Message) -> bytes:
    return msgspec.json.encode(message)


def decode(data: bytes, model: type[M]) -> M:
    """The message, or Unreadable with a sentence that says what is wrong with it."""
    try:
        message: M = _decoder(model).decode(data)
    except NOT_JSON as error:
        raise Unreadable(_worded(data, model, str(error))) from error
    return message


def utc(moment: datetime) -> datetime:
    """The moment in UTC, cut to the millisecond: as precise as clocks of different machines are."""
    moment = moment.astimezone(UTC)
    return moment.replace(microsecond=moment.microsecond // 1000 * 1000)


def _check_moments(said: Struct) -> None:
    """The first and the last year of the calendar cannot be told in every time zone, and have no time after them."""
    for name in _moments(type(said)):
        moment = getattr(said, name)
        if moment is not None and not MINYEAR < moment.year < MAXYEAR:
            raise ValueError(f"{name} is {moment}; nobody can reckon with that")


@cache
def _moments(kind: type[Struct]) -> tuple[str, ...]:
    hints = get_type_hints(kind)
    return tuple(name for name in kind.__struct_fields__ if datetime in (hints[name], *get_args(hints[name])))


class _Versioned(Struct):
    version: int | None = None


@cache
def _decoder(model: type[Message]) -> msgspec.json.Decoder[Any]:
    return msgspec.json.Decoder(model)


def _worded(data: bytes, model: type[Message], error: str) -> str:
    try:
        found = msgspec.json.decode(data, type=_Versioned).version
    except NOT_JSON:
        return f"cannot read this {model.__name__}: {error}"
    if found is not None and found > VERSION:
        return f"this {model.__name__} has version {found}; this process reads up to version {VERSION}: upgrade it"
    return f"cannot read this {model.__name__}: {error}"
