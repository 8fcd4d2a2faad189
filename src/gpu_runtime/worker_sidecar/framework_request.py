"""The request to the framework for one attempt of an invocation, and its HTTP headers. Nothing here awaits.

Callers may use any characters in header names and values. Characters that HTTP does not allow are percent-encoded.
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
    """The data of one attempt of an invocation."""

    invocation_id: str
    body: bytes = b""
    content_type: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    attributes: Mapping[str, Any] = field(default_factory=dict)
    deadline: datetime | None = None
    """Deadline with a time zone. None if the request has no deadline."""

    attempt: int = 1


def http_headers(request: FrameworkRequest) -> dict[str, str]:
    """Build the headers of the HTTP request. All names and values are printable ASCII."""
    headers = {
        INVOCATION_ID_HEADER: _encode_value(request.invocation_id),
        ATTEMPT_HEADER: str(request.attempt),
        "Content-Length": str(len(request.body)),
    }
    if request.content_type:
        headers["Content-Type"] = quote(
            request.content_type.strip(), safe=HEADER_VALUE_CHARACTERS + "%", errors="replace"
        )
    if request.attributes:
        headers[ATTRIBUTES_HEADER] = json.dumps(request.attributes, separators=(",", ":"))
    if request.deadline is not None:
        deadline = request.deadline.astimezone(UTC).replace(tzinfo=None)
        headers[DEADLINE_HEADER] = f"{deadline.isoformat(timespec='milliseconds')}Z"
    return headers | {
        CALLER_HEADER_PREFIX + _encode_name(name): _encode_value(value) for name, value in request.headers.items()
    }


def _encode_name(name: str) -> str:
    return quote(name, safe=HEADER_NAME_CHARACTERS + ascii_letters + digits, errors="replace")


def _encode_value(value: str) -> str:
    """Percent-encode a value. If it begins or ends with a space, encode all spaces, because HTTP parsers strip them."""
    safe = HEADER_VALUE_CHARACTERS if value == value.strip(" ") else HEADER_VALUE_CHARACTERS.replace(" ", "")
    return quote(value, safe=safe, errors="replace")
