"""Reads and deletes single messages of a stream, in stream order, without a consumer. Reading acknowledges nothing."""

import base64
from collections.abc import Mapping
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
    """A message as a stream stores it."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    published_at: datetime


async def next_message(
    connection: NatsConnection, stream: str, subject: str, sequence: int = 1
) -> StoredMessage | None:
    """Return the first message on the subject with this sequence or a later sequence, or None if there is none.

    The subject may contain wildcards.
    """
    return await _get_message(connection, stream, {"seq": max(1, sequence), "next_by_subj": subject})


async def last_message(connection: NatsConnection, stream: str, subject: str) -> StoredMessage | None:
    """Return the last message on the subject, or None if there is none."""
    return await _get_message(connection, stream, {"last_by_subj": subject})


async def delete_message(connection: NatsConnection, stream: str, sequence: int) -> bool:
    """Delete a message from a stream. Returns False if the message does not exist."""
    try:
        await api_request(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
    except JetStreamApiError as error:
        if is_message_not_found(error):
            return False
        raise
    return True


def is_message_not_found(error: JetStreamApiError) -> bool:
    """Return whether a deletion failed because the message does not exist.

    If the sequence is before the first message or after the last message, the server responds with an error code that
    it uses for every failed deletion. So this function checks the description of such an error.
    """
    if error.err_code == MESSAGE_DELETE_FAILED_CODE:
        return str(error) in ("no message found", "stream store EOF")
    return error.err_code in (MESSAGE_NOT_FOUND_CODE, SEQUENCE_NOT_FOUND_CODE)


async def _get_message(connection: NatsConnection, stream: str, query: dict[str, Any]) -> StoredMessage | None:
    try:
        message = (await api_request(connection, f"STREAM.MSG.GET.{stream}", query))["message"]
    except NatsNotFound as error:
        if error.err_code == MESSAGE_NOT_FOUND_CODE:
            return None
        raise
    return StoredMessage(
        message["subject"],
        message["seq"],
        base64.b64decode(message.get("data", "")),
        parse_headers(base64.b64decode(message.get("hdrs", ""))),
        msgspec.convert(message["time"], datetime),
    )
