"""Looking at what a stream holds, without taking it: message by message, in the order in which they were stored."""

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import header_lines
from gpu_runtime.jetstream.errors import NotFound, Refused

NO_MESSAGE = 10037
NO_SUCH_NUMBER = 10043
DELETE_FAILED = 10057


@dataclass(frozen=True)
class Kept:
    """A message as it lies in a stream."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    stored_at: datetime


async def first_kept(connection: Connection, stream: str, subject: str, sequence: int = 1) -> Kept | None:
    """The first message with that number or a later one on a subject, which may have wildcards; None after the last."""
    try:
        wanted = {"seq": max(1, sequence), "next_by_subj": subject}
        answer = await call(connection, f"STREAM.MSG.GET.{stream}", wanted)
    except NotFound as error:
        if error.kind == NO_MESSAGE:
            return None
        raise
    return _kept(answer["message"])


async def kept(connection: Connection, stream: str, subject: str, sequence: int = 1) -> AsyncIterator[Kept]:
    """Every message from that number on. What is stored meanwhile is among them."""
    while (found := await first_kept(connection, stream, subject, sequence)) is not None:
        yield found
        sequence = found.sequence + 1


async def remove(connection: Connection, stream: str, sequence: int) -> bool:
    """Take a message out of a stream. False where it was gone already."""
    try:
        await call(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
    except Refused as error:
        if is_gone(error):
            return False
        raise
    return True


def is_gone(error: Refused) -> bool:
    """Whether a deletion was refused because there is nothing to delete. At the ends of a stream the server has one
    number for every failed deletion, and says that in words."""
    if error.kind == DELETE_FAILED:
        return str(error) in ("no message found", "stream store EOF")
    return error.kind in (NO_MESSAGE, NO_SUCH_NUMBER)


def headers_of(message: Mapping[str, Any]) -> dict[str, str]:
    return header_lines(base64.b64decode(message.get("hdrs", "")))


def _kept(message: Mapping[str, Any]) -> Kept:
    return Kept(
        message["subject"],
        message["seq"],
        base64.b64decode(message.get("data", "")),
        headers_of(message),
        msgspec.convert(message["time"], datetime),
    )
