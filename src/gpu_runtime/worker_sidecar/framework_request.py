"""An invocation as the framework gets it, and its HTTP headers. Nothing here awaits.

Whatever a caller of the API put into names and values fits: what HTTP cannot carry is percent-encoded.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from string import ascii_letters, digits
from typing import Any
from urllib.parse import quote

from gpu_runtime.contract.framework_protocol import ATTEMPT, ATTRIBUTES, DEADLINE, HEADER_PREFIX, INVOCATION_ID

TOKEN = "!#$&'*+-.^_`|~"  # noqa: S105 - HTTP's word for what a header's name consists of
PRINTABLE = TOKEN + ' "(),/:;<=>?@[\\]{}'


@dataclass(frozen=True, kw_only=True)
class Invocation:
    invocation_id: str
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    deadline: datetime | None = None
    """With a time zone. None: nobody stops waiting."""

    attempt: int = 1


def http_headers(invocation: Invocation) -> dict[str, str]:
    headers = {
        INVOCATION_ID: _value(invocation.invocation_id),
        ATTEMPT: str(invocation.attempt),
        "Content-Length": str(len(invocation.body)),
    }
    if invocation.content_type:
        headers["Content-Type"] = quote(invocation.content_type.strip(), safe=PRINTABLE + "%", errors="replace")
    if invocation.attributes:
        headers[ATTRIBUTES] = json.dumps(invocation.attributes, separators=(",", ":"))
    if invocation.deadline is not None:
        headers[DEADLINE] = _time(invocation.deadline)
    return headers | {HEADER_PREFIX + _name(name): _value(value) for name, value in invocation.headers.items()}


def _time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _name(name: str) -> str:
    return quote(name, safe=TOKEN + ascii_letters + digits, errors="replace")


def _value(value: str) -> str:
    """Spaces at the ends would get lost on the way."""
    safe = PRINTABLE if value == value.strip(" ") else PRINTABLE.replace(" ", "")
    return quote(value, safe=safe, errors="replace")
