"""Calls to the JetStream API of the server: JSON requests and JSON responses on `$JS.API` subjects."""

from typing import Any

import msgspec

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import ApiErrorBody, NatsDecodeError, NoResponders, api_error_from

API_PREFIX = "$JS.API"


async def api_request(connection: NatsConnection, command: str, body: dict[str, Any] | None = None) -> dict[str, Any]:
    """Send one API request, such as `STREAM.INFO.<name>`, and return the decoded response.

    Raises a JetStreamError. NoResponders means that the server has JetStream disabled or has not started it yet.
    """
    data = msgspec.json.encode(body) if body is not None else b""
    try:
        response = await connection.request(f"{API_PREFIX}.{command}", data)
    except NoResponders as error:
        raise NoResponders("the NATS server has JetStream disabled, or has not started it yet") from error
    return _decode_response(response.data, command)


def _decode_response(data: bytes, command: str) -> dict[str, Any]:
    try:
        response: dict[str, Any] = msgspec.json.decode(data)
    except msgspec.DecodeError as error:
        raise NatsDecodeError(f"the response to {command} is not valid JSON: {error}") from error
    if error_body := response.get("error"):
        raise api_error_from(msgspec.convert(error_body, ApiErrorBody))
    return response
