"""What a call of the framework can come to, and which answer means what. Nothing here awaits.

2xx                     Answered          the result
422 and other 4xx       HandlerRejected   never again
408, 504                TimedOut          the deadline passed
425, 429, 503           AskedToRetry      again, later
500 and other 5xx       HandlerFailed     the handler's own failure
anything else, or none  Broken            the framework does not keep to the contract, or is gone
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
    """What is broken, as far as it matters for what is done next."""

    UNREACHABLE = "unreachable"
    """The framework was not reached: the handler was not called."""
    CONNECTION_LOST = "connection_lost"
    """The connection ended before the answer did: the handler may have run."""
    MALFORMED_RESPONSE = "malformed_response"
    """The answer is not HTTP as the contract wants it."""


@dataclass(frozen=True)
class HandlerSucceeded:
    status: int
    content_type: str
    body: bytes
    full_body_bytes: int | None = None
    """Where the body is only the beginning of an answer above the limit: how much the framework answered, as far as
    that is known."""


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
    """Seconds, where the framework named them."""


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
    return 200 <= status < 300


def outcome_of(status: int, headers: Mapping[str, str], body: bytes) -> FrameworkOutcome:
    """What an answer means. The names of its headers are in lower case."""
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
        f"the framework answered with status {status}, which the contract does not know",
    )


def _parse_error(status: int, body: bytes) -> tuple[str, str]:
    """What the error says of itself, else its text. A stranger wrote it, so any part may be missing or endless."""
    try:
        document: Any = json.loads(body)
        error = document["error"]
        return _truncate(str(error["type"]), MAX_ERROR_TYPE_LENGTH), _truncate(
            str(error["message"]), MAX_ERROR_MESSAGE_LENGTH
        )
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"HTTP {status}", _truncate(body.decode(errors="replace").strip(), MAX_ERROR_MESSAGE_LENGTH)


def replace_surrogates(text: str) -> str:
    """The text without halves of characters, which JSON's escapes and undecoded headers can hold and no message can."""
    return text.encode(errors="replace").decode()


def _truncate(text: str, limit: int) -> str:
    text = replace_surrogates(text)
    return text if len(text) <= limit else f"{text[:limit]}… (cut off)"


def _parse_retry_after(text: str) -> float | None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), MAX_RETRY_AFTER_SECONDS)
