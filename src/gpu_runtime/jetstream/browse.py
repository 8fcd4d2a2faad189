"""Looking into a stream without consuming: message after message, by number, and taking single ones out."""

import base64
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connect import Connection
from gpu_runtime.jetstream.errors import NotFound, Refused

_NO_SUCH_MESSAGE = 10037
_DELETE_FAILED = 10057
"""What the server says to the deletion of a message that is gone: it could not be loaded."""


@dataclass(frozen=True)
class Kept:
    """A message as it lies in its stream."""

    subject: str
    sequence: int
    data: bytes
    headers: Mapping[str, str]
    stored_at: datetime


async def next_message(connection: Connection, stream: str, subject: str, sequence: int) -> Kept | None:
    """The first message on a subject, which may have wildcards, from this number on. None where there is none."""
    try:
        answer = await call(connection, f"STREAM.MSG.GET.{stream}", {"seq": sequence, "next_by_subj": subject})
    except NotFound as error:
        if error.kind == _NO_SUCH_MESSAGE:
            return None
        raise
    found = answer["message"]
    return Kept(
        subject=found["subject"],
        sequence=found["seq"],
        data=base64.b64decode(found.get("data", "")),
        headers=_headers(found.get("hdrs", "")),
        stored_at=datetime.fromisoformat(found["time"]),
    )


async def delete_message(connection: Connection, stream: str, sequence: int) -> bool:
    """Take one message out of its stream. False where it is gone already."""
    try:
        await call(connection, f"STREAM.MSG.DELETE.{stream}", {"seq": sequence, "no_erase": True})
    except NotFound as error:
        if error.kind == _NO_SUCH_MESSAGE:
            return False
        raise
    except Refused as error:
        if error.kind == _DELETE_FAILED:
            return False
        raise
    return True


def _headers(encoded: str) -> dict[str, str]:
    lines = base64.b64decode(encoded).decode(errors="replace").split("\r\n")[1:]
    return {name: value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}
