"""Maps the status and body of a framework response to an outcome. Nothing here awaits.

2xx                     HandlerSucceeded  the body is the result
422 and other 4xx       HandlerRejected   the invocation fails and is not retried
408, 504                TimedOut          the deadline passed
425, 429, 503           RetryRequested    the invocation is retried later
500 and other 5xx       HandlerFailed     the invocation fails with the error of the handler
other status, or none   FrameworkFailed   the framework violates the contract or is not running
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias

MAX_ERROR_MESSAGE_LENGTH = 4096
MAX_ERROR_TYPE_LENGTH = 128
MAX_RETRY_AFTER_SECONDS = 86_400.0


class FrameworkFailureKind(Enum):
    """How the framework failed. The kind determines whether the invocation is retried."""

    UNREACHABLE = "unreachable"
    """The client could not connect, so the handler was not called."""
    CONNECTION_LOST = "connection_lost"
    """The connection closed before the end of the response, so the handler may have run."""
    MALFORMED_RESPONSE = "malformed_response"
    """The response is not valid HTTP, or it violates the contract."""


@dataclass(frozen=True)
class HandlerSucceeded:
    status: int
    content_type: str
    body: bytes
    full_body_bytes: int | None = None
    """Size of the full body, or a lower bound of it, if `body` was truncated. None if `body` is complete."""


@dataclass(frozen=True)
class HandlerFailed:
    error_type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class HandlerRejected:
    error_type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class RetryRequested:
    error_type: str
    message: str
    retry_after_seconds: float | None = None
    """Delay that the framework requested. If it is None, the sidecar uses its backoff."""


@dataclass(frozen=True)
class TimedOut:
    message: str


@dataclass(frozen=True)
class FrameworkFailed:
    kind: FrameworkFailureKind
    reason: str


FrameworkOutcome: TypeAlias = (
    HandlerSucceeded | HandlerFailed | HandlerRejected | RetryRequested | TimedOut | FrameworkFailed
)


def is_success(status: int) -> bool:
    """Return whether the status means that the handler succeeded."""
    return 200 <= status < 300


def outcome_of(status: int, headers: Mapping[str, str], body: bytes) -> FrameworkOutcome:
    """Return the outcome of a response. Header names must be lower case."""
    if is_success(status):
        return HandlerSucceeded(status, replace_surrogates(headers.get("content-type", "")), body)
    kind, message = _parse_error(status, body)
    if status in (408, 504):
        return TimedOut(message)
    if status in (425, 429, 503):
        return RetryRequested(kind, message, _parse_retry_after(headers.get("retry-after", "")))
    if 400 <= status < 500:
        return HandlerRejected(kind, message, status)
    if 500 <= status < 600:
        return HandlerFailed(kind, message, status)
    return FrameworkFailed(
        FrameworkFailureKind.MALFORMED_RESPONSE,
        f"the framework returned status {status}, which the contract does not define",
    )


def _parse_error(status: int, body: bytes) -> tuple[str, str]:
    """Return the type and the message of an error response.

    User code produces the body, so any part may be missing or too long. If the body does not follow the contract, the
    type is the status and the message is the text of the body.
    """
    try:
        document: Any = json.loads(body)
        error = document["error"]
        return _truncate(str(error["type"]), MAX_ERROR_TYPE_LENGTH), _truncate(
            str(error["message"]), MAX_ERROR_MESSAGE_LENGTH
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"HTTP {status}", _truncate(body.decode(errors="replace").strip(), MAX_ERROR_MESSAGE_LENGTH)


def replace_surrogates(text: str) -> str:
    """Replace lone surrogates, because messages are UTF-8 and cannot contain them.

    Lone surrogates come from JSON escapes and from header bytes that are not UTF-8.
    """
    return text.encode(errors="replace").decode()


def _truncate(text: str, limit: int) -> str:
    text = replace_surrogates(text)
    return text if len(text) <= limit else f"{text[:limit]}… (cut off)"


def _parse_retry_after(text: str) -> float | None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), MAX_RETRY_AFTER_SECONDS)
