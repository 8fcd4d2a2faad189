"""How much a message may hold. What is above a limit is refused with a sentence that names the limit.

NATS takes messages of 1 MiB unless it is told otherwise. A dead letter holds another message, and both hold bytes as
base64: 512 KiB of body become 683 KiB in the invocation and 911 KiB in its dead letter. So this is what always fits.
"""

from collections.abc import Mapping

import msgspec

from gpu_runtime.contract.errors import TooLarge
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors

MAX_PAYLOAD_BYTES = 512 * 1024
"""Bytes of an invocation's body, and of a result's."""

MAX_METADATA_BYTES = 16 * 1024
"""Bytes of all headers, and of all attributes, names included, as they are written into a message."""

MAX_TIMEOUT_SECONDS = 24 * 3600
"""Seconds."""

MAX_INVOCATION_ID_LENGTH = 128
MAX_REASON_LENGTH = 2048
"""Characters of a failure's message: enough for a person, and no way to smuggle a body past its limit."""


def check_body(body: bytes, limit: int = MAX_PAYLOAD_BYTES, at: str = "payload") -> None:
    if len(body) > limit:
        raise TooLarge(f"{at}: has {len(body)} bytes; at most {limit} are taken")


def metadata_errors(entries: Mapping[str, str], at: str) -> FieldErrors:
    # Not characters: one that is no ASCII has up to four bytes, a control character six, and every entry its signs.
    size = len(msgspec.json.encode(entries))
    if size > MAX_METADATA_BYTES:
        yield FieldError(at, f"have {size} bytes together, as JSON; at most {MAX_METADATA_BYTES} are taken")


def is_stream_sequence(text: str) -> bool:
    """Whether it is the number of a message in a stream, which has 64 bits."""
    return text.isascii() and text.isdecimal() and len(text) < 20


def truncate_text(text: str, limit: int = MAX_REASON_LENGTH) -> str:
    """The text, or its beginning with a sign that it is not all."""
    return text if len(text) <= limit else f"{text[: limit - 1]}…"
