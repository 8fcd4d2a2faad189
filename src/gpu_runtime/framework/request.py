"""What a handler gets, and how it is read from the HTTP request. Nothing here awaits."""

import json
import math
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from urllib.parse import unquote

from gpu_runtime.framework.errors import BadRequest

INVOCATION_ID = "Gpu-Runtime-Invocation-Id"
DEADLINE = "Gpu-Runtime-Deadline"
ATTEMPT = "Gpu-Runtime-Attempt"
ATTRIBUTES = "Gpu-Runtime-Attributes"
HEADER_PREFIX = "Gpu-Runtime-Header-"


class Headers(Mapping[str, str]):
    """Headers by name, whatever the case of the name."""

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
    """One invocation."""

    payload: Any = None
    """What the caller sent: decoded where it is JSON, else the bytes."""

    invocation_id: str = ""
    """The same for every attempt at the same invocation."""

    headers: Headers = field(default_factory=Headers)
    """The headers that the caller gave to the invocation; not those of this HTTP request."""

    attributes: Mapping[str, Any] = field(default_factory=dict)

    deadline: datetime | None = None
    """When nobody waits for the answer any more, in UTC. None: no limit."""

    attempt: int = 1
    """1 for the first try."""

    content_type: str = ""

    monotonic_deadline: float = math.inf
    """The deadline on the monotonic clock, which nobody sets."""

    def remaining(self) -> float:
        """Seconds until the deadline; 0 or less when it has passed, infinity when there is none."""
        return self.monotonic_deadline - time.monotonic()


def request_of(headers: Mapping[str, str], body: bytes) -> Request:
    """The request in these HTTP headers (their names in lower case) and this body."""
    content_type = headers.get("content-type", "")
    deadline = _deadline(headers.get(DEADLINE.lower()))
    return Request(
        payload=_payload(content_type, body),
        invocation_id=unquote(headers.get(INVOCATION_ID.lower(), "")),
        headers=_user_headers(headers),
        attributes=_attributes(headers.get(ATTRIBUTES.lower())),
        deadline=deadline,
        attempt=_attempt(headers.get(ATTEMPT.lower(), "1")),
        content_type=content_type,
        monotonic_deadline=math.inf if deadline is None else time.monotonic() + deadline.timestamp() - time.time(),
    )


def is_json(content_type: str) -> bool:
    essence = content_type.partition(";")[0].strip().lower()
    return essence == "application/json" or essence.endswith("+json")


def _payload(content_type: str, body: bytes) -> Any:
    if not body and (not content_type or is_json(content_type)):
        return None
    return _decode_json(body, "the payload") if is_json(content_type) else body


def _decode_json(text: bytes | str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:  # nested too deeply, for one
        raise BadRequest(400, f"{what} is not JSON: {error}") from None


def _user_headers(headers: Mapping[str, str]) -> Headers:
    prefix = HEADER_PREFIX.lower()
    return Headers(
        {unquote(name[len(prefix) :]): unquote(value) for name, value in headers.items() if name.startswith(prefix)}
    )


def _attributes(text: str | None) -> dict[str, Any]:
    attributes = {} if text is None else _decode_json(text, ATTRIBUTES)
    if not isinstance(attributes, dict):
        raise BadRequest(400, f"{ATTRIBUTES} is not a JSON object")
    return attributes


def _deadline(text: str | None) -> datetime | None:
    if text is None:
        return None
    try:
        deadline = datetime.fromisoformat(text)
        if deadline.tzinfo is not None:  # else the container's time zone would decide
            return deadline.astimezone(UTC)
    except (ValueError, OverflowError):
        pass
    raise BadRequest(400, f"{DEADLINE} is {text[:64]!r}; give a time as 2030-01-31T23:59:59.000Z")


def _attempt(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 10 and int(text) > 0):
        raise BadRequest(400, f"{ATTEMPT} is {text[:64]!r}; give a whole number above 0")
    return int(text)
