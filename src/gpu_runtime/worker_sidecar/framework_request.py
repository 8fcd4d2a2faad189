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

from gpu_runtime.contract.framework_protocol import (
    ATTEMPT_HEADER,
    ATTRIBUTES_HEADER,
    CALLER_HEADER_PREFIX,
    DEADLINE_HEADER,
    INVOCATION_ID_HEADER,
)

HEADER_NAME_CHARACTERS = "!#$&'*+-.^_`|~"
HEADER_VALUE_CHARACTERS = HEADER_NAME_CHARACTERS + ' "(),/:;<=>?@[\\]{}'


@dataclass(frozen=True, kw_only=True)
class FrameworkRequest:
    invocation_id: str
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    deadline: datetime | None = None
    """With a time zone. None: nobody stops waiting."""

    attempt: int = 1


def http_headers(invocation: FrameworkRequest) -> dict[str, str]:
    headers = {
        INVOCATION_ID_HEADER: _encode_value(invocation.invocation_id),
        ATTEMPT_HEADER: str(invocation.attempt),
        "Content-Length": str(len(invocation.body)),
    }
    if invocation.content_type:
        headers["Content-Type"] = quote(
            invocation.content_type.strip(), safe=HEADER_VALUE_CHARACTERS + "%", errors="replace"
        )
    if invocation.attributes:
        headers[ATTRIBUTES_HEADER] = json.dumps(invocation.attributes, separators=(",", ":"))
    if invocation.deadline is not None:
        headers[DEADLINE_HEADER] = _format_time(invocation.deadline)
    return headers | {
        CALLER_HEADER_PREFIX + _encode_name(name): _encode_value(value) for name, value in invocation.headers.items()
    }


def _format_time(moment: datetime) -> str:
    return f"{moment.astimezone(UTC).replace(tzinfo=None).isoformat(timespec='milliseconds')}Z"


def _encode_name(name: str) -> str:
    return quote(name, safe=HEADER_NAME_CHARACTERS + ascii_letters + digits, errors="replace")


def _encode_value(value: str) -> str:
    """Spaces at the ends would get lost on the way."""
    safe = HEADER_VALUE_CHARACTERS if value == value.strip(" ") else HEADER_VALUE_CHARACTERS.replace(" ", "")
    return quote(value, safe=safe, errors="replace")
