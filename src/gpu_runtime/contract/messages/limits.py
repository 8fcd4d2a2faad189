"""Size limits of messages. If a value exceeds its limit, the error message contains the limit.

The default limit of NATS for a message (max_payload) is 1 MiB. A dead letter contains another message, and both encode
bytes as base64: a body of 512 KiB becomes 683 KiB in the invocation and 911 KiB in its dead letter. So every body
within the limit fits.
"""

from collections.abc import Mapping

import msgspec

from gpu_runtime.contract.errors import TooLarge
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors

MAX_PAYLOAD_BYTES = 512 * 1024
"""The maximum size of the body of an invocation and of a result."""

MAX_METADATA_BYTES = 16 * 1024
"""The maximum size of all headers together, and of all attributes together, with their names, encoded as JSON."""

MAX_TIMEOUT_SECONDS = 24 * 3600
"""The maximum timeout of an invocation: one day."""

MAX_INVOCATION_ID_LENGTH = 128
MAX_REASON_LENGTH = 2048
"""The maximum length of a failure message in characters. It limits the size of results and dead letters."""


def check_body(body: bytes, limit: int = MAX_PAYLOAD_BYTES, at: str = "payload") -> None:
    if len(body) > limit:
        raise TooLarge(f"{at}: has {len(body)} bytes; send at most {limit}")


def metadata_errors(entries: Mapping[str, str], at: str) -> FieldErrors:
    # The size is counted in encoded bytes, not in characters: a non-ASCII character has up to four bytes, a control
    # character has six, and every entry has quotes and separators.
    size = len(msgspec.json.encode(entries))
    if size > MAX_METADATA_BYTES:
        yield FieldError(at, f"have {size} bytes together, as JSON; send at most {MAX_METADATA_BYTES}")


def is_stream_sequence(text: str) -> bool:
    """Whether the text is a decimal number that fits into a stream sequence of 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def truncate_text(text: str, limit: int = MAX_REASON_LENGTH) -> str:
    """Return the text, truncated to the limit. A truncated text ends with an ellipsis."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
