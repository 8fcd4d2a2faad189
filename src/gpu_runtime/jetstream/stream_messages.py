"""Looking at what a stream holds, without taking it: message by message, in the order in which they were stored."""

import base64
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import msgspec

from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import parse_headers
from gpu_runtime.jetstream.errors import JetStreamApiError, NatsNotFound

MESSAGE_NOT_FOUND_CODE = 10037
SEQUENCE_NOT_FOUND_CODE = 10043
MESSAGE_DELETE_FAILED_CODE = 10057


@dataclass(frozen=True)
class StoredMessage:
    """A message as it lies in a stream."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    published_at: datetime


async def next_message(
    connection: NatsConnection, stream: str, subject: str, sequence: int = 1
) -> StoredMessage | None:
    """The first message with that number or a later one on a subject, which may have wildcards; None after the last."""
    try:
        wanted = {"seq": max(1, sequence), "next_by_subj": subject}
        answer = await api_request(connection, f"STREAM.MSG.GET.{stream}", wanted)
    except NatsNotFound as error:
        if error.err_code == MESSAGE_NOT_FOUND_CODE:
            return None
        raise
    return _stored_message(answer["message"])


async def iter_messages(
    connection: NatsConnection, stream: str, subject: str, sequence: int = 1
) -> AsyncIterator[StoredMessage]:
    """Every message from that number on. What is stored meanwhile is among them."""
    while (found := await next_message(connection, stream, subject, sequence)) is not None:
        yield found
        sequence = found.sequence + 1


async def delete_message(connection: NatsConnection, stream: str, sequence: int) -> bool:
    """Take a message out of a stream. False where it was gone already."""
    try:
        await api_request(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
    except JetStreamApiError as error:
        if is_message_not_found(error):
            return False
        raise
    return True


def is_message_not_found(error: JetStreamApiError) -> bool:
    """Whether a deletion was refused because there is nothing to delete. At the ends of a stream the server has one
    number for every failed deletion, and says that in words."""
    if error.err_code == MESSAGE_DELETE_FAILED_CODE:
        return str(error) in ("no message found", "stream store EOF")
    return error.err_code in (MESSAGE_NOT_FOUND_CODE, SEQUENCE_NOT_FOUND_CODE)


def decode_headers(message: Mapping[str, Any]) -> dict[str, str]:
    return parse_headers(base64.b64decode(message.get("hdrs", "")))


def _stored_message(message: Mapping[str, Any]) -> StoredMessage:
    return StoredMessage(
        message["subject"],
        message["seq"],
        base64.b64decode(message.get("data", "")),
        decode_headers(message),
        msgspec.convert(message["time"], datetime),
    )
