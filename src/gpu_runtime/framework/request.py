"""The request that a handler receives, and its decoding from HTTP headers and a body. Nothing here awaits."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from gpu_runtime.framework.errors import BadRequest

INVOCATION_ID_HEADER = "Gpu-Runtime-Invocation-Id"
DEADLINE_HEADER = "Gpu-Runtime-Deadline"
ATTEMPT_HEADER = "Gpu-Runtime-Attempt"
ATTRIBUTES_HEADER = "Gpu-Runtime-Attributes"
CALLER_HEADER_PREFIX = "Gpu-Runtime-Header-"


class Headers(Mapping[str, str]):
    """Headers by name. Lookups ignore the case of the name."""

    def __init__(self, values: Mapping[str, str] | None = None) -> None:
        self._values = {name.lower(): value for name, value in (values or {}).items()}

    def __getitem__(self, name: str) -> str:
        return self._values[name.lower()]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Headers({self._values!r})"


@dataclass(frozen=True)
class Request:
    """One attempt of an invocation, as the handler sees it."""

    payload: Any = None
    """The payload of the caller: decoded if the content type is JSON, else bytes.
    None if the body is empty and its content type is missing or JSON."""

    invocation_id: str = ""
    """ID of the invocation. Every attempt of an invocation has the same ID."""

    headers: Headers = field(default_factory=Headers)
    """Headers that the caller added to the invocation. They are not the headers of this HTTP request."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that the caller added to the invocation."""

    deadline: datetime | None = None
    """Time in UTC at which the platform stops waiting for the response. None: no deadline."""

    attempt: int = 1
    """Number of this attempt, starting at 1."""

    content_type: str = ""
    """Content type of the payload. Empty if the caller sent none."""

    monotonic_deadline: float = math.inf
    """The deadline on the monotonic clock, which changes of the system time do not affect."""

    def remaining(self) -> float:
        """Return the seconds until the deadline: 0 or less if it has passed, infinity if there is none."""
        return self.monotonic_deadline - time.monotonic()


def request_of(headers: Mapping[str, str], body: bytes) -> Request:
    """Decode a request from HTTP headers (with lower-case names) and a body."""
    content_type = headers.get("content-type", "")
    deadline = _deadline(headers.get(DEADLINE_HEADER.lower()))
    return Request(
        payload=_payload(content_type, body),
        invocation_id=unquote(headers.get(INVOCATION_ID_HEADER.lower(), "")),
        headers=_user_headers(headers),
        attributes=_attributes(headers.get(ATTRIBUTES_HEADER.lower())),
        deadline=deadline,
        attempt=_attempt(headers.get(ATTEMPT_HEADER.lower(), "1")),
        content_type=content_type,
        monotonic_deadline=math.inf if deadline is None else time.monotonic() + deadline.timestamp() - time.time(),
    )


def is_json(content_type: str) -> bool:
    """Return whether a content type is application/json or has the suffix +json. Parameters are ignored."""
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or essence.endswith("+json")


def _payload(content_type: str, body: bytes) -> Any:
    if not body and (not content_type or is_json(content_type)):
        return None
    return _decode_json(body, "the payload") if is_json(content_type) else body


def _decode_json(text: bytes | str, source: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # RecursionError: too many nested levels
        raise BadRequest(400, f"{source} is not JSON: {error}") from None


def _user_headers(headers: Mapping[str, str]) -> Headers:
    prefix = CALLER_HEADER_PREFIX.lower()
    return Headers(
        {unquote(name[len(prefix) :]): unquote(value) for name, value in headers.items() if name.startswith(prefix)}
    )


def _attributes(text: str | None) -> dict[str, Any]:
    attributes = {} if text is None else _decode_json(text, ATTRIBUTES_HEADER)
    if not isinstance(attributes, dict):
        raise BadRequest(400, f"{ATTRIBUTES_HEADER} is not a JSON object")
    return attributes


def _deadline(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        deadline = datetime.fromisoformat(text)
        if deadline.tzinfo is not None:  # without an offset, the time zone of the container would decide
            return deadline.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(
        400, f"{DEADLINE_HEADER} is {text[:64]!r}; use a time with an offset, for example 2030-01-31T23:59:59.000Z"
    )


def _attempt(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise BadRequest(400, f"{ATTEMPT_HEADER} is {text[:64]!r}; use an integer greater than 0")
    return int(text)
