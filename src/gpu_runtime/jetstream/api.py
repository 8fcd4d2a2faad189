"""JetStream's own API: requests and answers in JSON."""

from typing import Any

import msgspec

from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import ApiFault, NoResponders, Unreadable, refusal

PREFIX = "$JS.API"


async def call(connection: Connection, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for one thing. The errors are those of the tree; NoResponders where the server has no JetStream."""
    data = msgspec.json.encode(body) if body is not None else b""
    try:
        answer = await connection.request(f"{PREFIX}.{what}", data)
    except NoResponders as error:
        raise NoResponders("the NATS server has no JetStream, or not yet") from error
    return _read(answer.data, what)


def _read(data: bytes, what: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(f"the answer to {what} is no JSON: {error}") from error
    if fault := answer.get("error"):
        raise refusal(msgspec.convert(fault, ApiFault))
    return answer
