"""Encodes the return value or the exception of a handler as an HTTP response. Nothing here awaits."""

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from gpu_runtime.framework.errors import Reject, Retry

JSON_CONTENT_TYPE = "application/json"
MAX_ERROR_MESSAGE_LENGTH = 4096
"""A longer error message is truncated, and its end is marked. A message is meant to be a sentence, not a dump."""

_HEADER_VALUE = re.compile(r"[!-~]+(?:[ \t]+[!-~]+)*")


@dataclass(frozen=True)
class Response:
    """A return value with its own content type or status.

    If the content type is None, the Python type of the body decides.
    """

    body: Any = None
    content_type: str | None = None
    status: int = 200

    def __post_init__(self) -> None:
        if not isinstance(self.status, int) or not (200 <= self.status < 300 or 400 <= self.status < 600):
            raise ValueError(f"status is {self.status!r}; use 200 to 299 or 400 to 599")
        if self.content_type is not None and not _HEADER_VALUE.fullmatch(self.content_type):
            raise ValueError(f"content_type is {self.content_type!r}; use a media type, for example text/csv")
        if self.status in (204, 205) and self.body is not None:
            raise ValueError(f"a response with status {self.status} has no body; set body to None")


@dataclass(frozen=True)
class EncodedResponse:
    """A response as status, content type, body bytes and extra headers."""

    status: int
    content_type: str | None
    body: bytes
    headers: tuple[tuple[str, str], ...] = ()


def response_from_value(value: Any) -> EncodedResponse:
    """Encode the return value of a handler. Raise TypeError or ValueError if it cannot be encoded."""
    if not isinstance(value, Response):
        value = Response(value, status=204 if value is None else 200)
    content_type, body = _encode_body(value.body)
    return EncodedResponse(value.status, value.content_type or content_type, body)


def response_from_exception(error: BaseException) -> EncodedResponse:
    """Encode an exception of a handler. The response contains its type and its message, but never the traceback."""
    if isinstance(error, Retry):
        after = None if error.after is None else str(math.ceil(error.after))
        return error_response(503, "Retry", exception_text(error), () if after is None else (("Retry-After", after),))
    if isinstance(error, Reject):
        return error_response(422, "Reject", exception_text(error))
    return error_response(500, type(error).__name__, exception_text(error))


def error_response(status: int, kind: str, message: str, headers: tuple[tuple[str, str], ...] = ()) -> EncodedResponse:
    """Build an error response with the JSON body of the contract."""
    body = json.dumps({"error": {"type": kind, "message": truncate(message)}}).encode()
    return EncodedResponse(status, JSON_CONTENT_TYPE, body, headers)


def truncate(message: str) -> str:
    """Shorten a message to MAX_ERROR_MESSAGE_LENGTH characters and mark that it was shortened."""
    return message if len(message) <= MAX_ERROR_MESSAGE_LENGTH else f"{message[:MAX_ERROR_MESSAGE_LENGTH]}… (cut off)"


def exception_text(error: BaseException) -> str:
    """Return the text of an exception, even if its `__str__` fails."""
    try:
        return str(error)
    except BaseException:  # noqa: BLE001 - the __str__ of a user's exception may raise anything
        return "the exception has no text: its __str__ failed"


def _encode_body(body: Any) -> tuple[str | None, bytes]:
    if body is None:
        return None, b""
    if isinstance(body, (bytes, bytearray, memoryview)):
        return "application/octet-stream", bytes(body)
    if isinstance(body, str):
        return "text/plain; charset=utf-8", body.encode()
    return JSON_CONTENT_TYPE, _encode_json(body)


def _encode_json(body: Any) -> bytes:
    try:
        return json.dumps(body, allow_nan=False, separators=(",", ":")).encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise TypeError(
            f"the return value of the handler is not JSON ({error});"
            " return a JSON-compatible value, bytes, str, None or a Response"
        ) from error
