"""The ticket of an invocation: the proof that the platform accepted this invocation for this function.

The runtime API signs a ticket when it accepts an invocation. Every message about the invocation has the ticket in a
header:

INVOKE, DISPATCH       the activator checks the ticket and passes it on to the worker
RESULT, replies, DLQ   the sender returns the ticket that it received with the invocation

Workers have no key, so a worker can only return the tickets of invocations that the activator dispatched to its
function. A process that has the keys checks a ticket without a read. It ignores every message without a valid ticket.

A ticket contains what does not change during an invocation. The MAC is computed over the bytes that the header
contains, so it does not depend on how a value is encoded. Nothing here awaits.
"""

import base64
import binascii
import hashlib
import hmac
from collections.abc import Callable, Mapping, Sequence
from typing import TypeAlias

import msgspec

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, record_from_headers
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS, Instant

TICKET_HEADER = "Gpu-Runtime-Ticket"
"""The header with the ticket of the invocation."""

MIN_KEY_BYTES = 32
"""The minimum length of a key: as long as the MAC."""
MAX_KEYS = 2
"""The current key and, during a rotation, the next or the previous key."""
MAX_TICKET_LENGTH = 4096
"""The maximum length of a ticket in characters. A valid ticket is much shorter."""

MessageIDs: TypeAlias = Callable[..., str]
"""Returns the message ID for parts that identify a message. The same parts have the same ID."""


class InvalidTicket(Rejected):
    """The message has no valid ticket: another program sent it, or this process does not have the key of the ticket."""

    code = "invalid_ticket"


class InvalidTicketKeys(Rejected):
    """The keys cannot be used. The message names the line and the remedy, and contains no part of a key."""

    code = "invalid_ticket_keys"


class InvocationTicket(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    """The signed values. If a record or a message has other values, it belongs to another invocation."""

    invocation_id: str
    function_id: str
    serverless_request_id: str
    request_hash: str
    enqueued_at: Instant
    deadline: Instant
    reply_to: str

    def matches(self, record: InvocationRecord) -> bool:
        """Whether the record belongs to this invocation."""
        return self == ticket_of(self.invocation_id, record)


def ticket_of(invocation_id: str, record: InvocationRecord) -> InvocationTicket:
    return InvocationTicket(
        invocation_id,
        record.function_id,
        record.serverless_request_id,
        record.request_hash,
        record.enqueued_at,
        record.deadline,
        record.reply_to,
    )


def header_record(headers: Mapping[str, str], ticket: InvocationTicket) -> RecordAtRevision | None:
    """Return the record in the headers, or None if it is missing or does not belong to the invocation of the ticket.

    A worker may have written the headers.
    """
    stored = record_from_headers(headers)
    return stored if stored and ticket.matches(stored.record) else None


def ticket_headers(ticket: str) -> dict[str, str]:
    return {TICKET_HEADER: ticket} if ticket else {}


class TicketKeyring:
    """Signs tickets with the first key, and accepts tickets that are signed with any of the keys."""

    def __init__(self, keys: Sequence[bytes]) -> None:
        self._keys = tuple(keys)

    def replace(self, keys: Sequence[bytes]) -> None:
        """Use other keys from now on."""
        self._keys = tuple(keys)

    def sign(self, ticket: InvocationTicket) -> str:
        """Return the ticket as the value of a header."""
        payload = base64.urlsafe_b64encode(msgspec.json.encode(ticket)).decode()
        return f"{payload}.{_mac(self._keys[0], 'ticket', payload)}"

    def sign_record(self, invocation_id: str, record: InvocationRecord) -> str:
        return self.sign(ticket_of(invocation_id, record))

    def verify(self, headers: Mapping[str, str] | None) -> InvocationTicket:
        """Return the ticket in the headers of a message. Raises InvalidTicket."""
        text = (headers or {}).get(TICKET_HEADER, "")
        if not text:
            raise InvalidTicket("the message has no ticket")
        payload, _, mac = text.rpartition(".")
        if len(text) > MAX_TICKET_LENGTH or not self._is_signed(payload, mac):
            raise InvalidTicket("the ticket has no valid signature")
        try:
            return msgspec.json.decode(base64.urlsafe_b64decode(payload), type=InvocationTicket)
        except (*JSON_DECODE_ERRORS, binascii.Error) as error:  # another version of the platform signed it
            raise InvalidTicket(f"the ticket cannot be read: {error}") from error

    def message_id(self, *parts: str) -> str:
        """Return a message ID that only a process with the key can compute.

        Two processes compute the same ID for the same message. So JetStream stores a message only once if a process
        sends it again after a crash.
        """
        return _mac(self._keys[0], "message-id", *parts)

    def _is_signed(self, payload: str, mac: str) -> bool:
        received = mac.encode(errors="replace")
        return any(hmac.compare_digest(_mac(key, "ticket", payload).encode(), received) for key in self._keys)


def worker_message_id(*parts: str) -> str:
    """Return the message ID of a message from a worker. One of the parts must be the ticket.

    Only the workers of the function know the ticket. So a worker of another function cannot compute the ID.
    """
    return hashlib.sha256(_joined("worker", *parts)).hexdigest()


def parse_ticket_keys(text: str) -> tuple[bytes, ...]:
    """Return the keys in the text of a key file: one key per line, in hexadecimal digits, the signing key first.

    Raises InvalidTicketKeys.
    """
    keys = tuple(_parse_key(line.strip(), number) for number, line in enumerate(text.splitlines(), 1) if line.strip())
    if not 1 <= len(keys) <= MAX_KEYS:
        raise InvalidTicketKeys(f"has {len(keys)} keys; write one key per line, and at most {MAX_KEYS} keys")
    if len(set(keys)) < len(keys):
        raise InvalidTicketKeys("has the same key twice; write each key once")
    return keys


def _parse_key(line: str, number: int) -> bytes:
    try:
        key = bytes.fromhex(line)
    except ValueError:
        raise InvalidTicketKeys(
            f"line {number} is not a key in hexadecimal digits; write only hexadecimal digits"
        ) from None
    if len(key) < MIN_KEY_BYTES:
        raise InvalidTicketKeys(f"line {number} has {len(key)} bytes; use at least {MIN_KEY_BYTES} bytes")
    return key


def _mac(key: bytes, *parts: str) -> str:
    return hmac.digest(key, _joined(*parts), "sha256").hex()


def _joined(*parts: str) -> bytes:
    """Encode the parts so that different parts have different bytes."""
    return msgspec.json.encode(parts)
