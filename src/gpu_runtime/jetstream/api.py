"""JetStream's own API: requests and answers in JSON."""

from typing import Any

import msgspec

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import ApiErrorBody, NatsDecodeError, NoResponders, api_error_from

API_PREFIX = "$JS.API"


async def api_request(connection: NatsConnection, what: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Ask for one thing. The errors are those of the tree; NoResponders where the server has no JetStream."""
    data = msgspec.json.encode(body) if body is not None else b""
    try:
        answer = await connection.request(f"{API_PREFIX}.{what}", data)
    except NoResponders as error:
        raise NoResponders("the NATS server has no JetStream, or not yet") from error
    return _decode_response(answer.data, what)


def _decode_response(data: bytes, what: str) -> dict[str, Any]:
    try:
        answer: dict[str, Any] = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise NatsDecodeError(f"the answer to {what} is no JSON: {error}") from error
    if fault := answer.get("error"):
        raise api_error_from(msgspec.convert(fault, ApiErrorBody))
    return answer
