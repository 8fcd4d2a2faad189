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

MESSAGE_LIMIT = 4096
TYPE_LIMIT = 128
RETRY_AFTER_LIMIT = 86_400.0


class Break(Enum):
    """What is broken, as far as it matters for what is done next."""

    UNREACHABLE = "unreachable"
    """The framework was not reached: the handler was not called."""
    LOST = "lost"
    """The connection ended before the answer did: the handler may have run."""
    GARBLED = "garbled"
    """The answer is not HTTP as the contract wants it."""


@dataclass(frozen=True)
class Answered:
    status: int
    content_type: str
    body: bytes
    size: int | None = None
    """Where the body is only the beginning of an answer above the limit: how much the framework answered, as far as
    that is known."""


@dataclass(frozen=True)
class HandlerFailed:
    type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class HandlerRejected:
    type: str
    message: str
    status: int | None = field(default=None, compare=False)


@dataclass(frozen=True)
class AskedToRetry:
    type: str
    message: str
    after: float | None = None
    """Seconds, where the framework named them."""


@dataclass(frozen=True)
class TimedOut:
    message: str


@dataclass(frozen=True)
class Broken:
    kind: Break
    reason: str


Outcome: TypeAlias = Answered | HandlerFailed | HandlerRejected | AskedToRetry | TimedOut | Broken


def is_result(status: int) -> bool:
    return 200 <= status < 300


def outcome_of(status: int, headers: Mapping[str, str], body: bytes) -> Outcome:
    """What an answer means. The names of its headers are in lower case."""
    if is_result(status):
        return Answered(status, sendable(headers.get("content-type", "")), body)
    kind, message = _error(status, body)
    if status in (408, 504):
        return TimedOut(message)
    if status in (425, 429, 503):
        return AskedToRetry(kind, message, _retry_after(headers.get("retry-after", "")))
    if 400 <= status < 500:
        return HandlerRejected(kind, message, status)
    if 500 <= status < 600:
        return HandlerFailed(kind, message, status)
    return Broken(Break.GARBLED, f"the framework answered with status {status}, which the contract does not know")


def _error(status: int, body: bytes) -> tuple[str, str]:
    """What the error says of itself, else its text. A stranger wrote it, so any part may be missing or endless."""
    try:
        document: Any = json.loads(body)
        error = document["error"]
        return _cut(str(error["type"]), TYPE_LIMIT), _cut(str(error["message"]), MESSAGE_LIMIT)
    except (ValueError, LookupError, TypeError, RecursionError):
        return f"HTTP {status}", _cut(body.decode(errors="replace").strip(), MESSAGE_LIMIT)


def sendable(text: str) -> str:
    """The text without halves of characters, which JSON's escapes and undecoded headers can hold and no message can."""
    return text.encode(errors="replace").decode()


def _cut(text: str, limit: int) -> str:
    text = sendable(text)
    return text if len(text) <= limit else f"{text[:limit]}… (cut off)"


def _retry_after(text: str) -> float | None:
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        return None
    return min(float(text), RETRY_AFTER_LIMIT)
