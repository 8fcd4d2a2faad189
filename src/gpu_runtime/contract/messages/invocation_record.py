"""The record of an invocation in the key-value bucket: the hash of its request, and its state.

A replica accepts an invocation by creating its record. If several replicas try to create the record, exactly one
succeeds. This guarantee does not depend on the deduplication of JetStream: after a restart, JetStream does not know the
IDs of messages that were already removed from the stream.

Every message about an invocation has headers with the record and its revision at the time of sending. So each state
change (queued, dispatched, running, terminal) needs one conditional write and no read before it. The write conflicts if
the invocation was cancelled or delivered twice. The process then reads the record to find the reason.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

import msgspec
from msgspec import field

from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import Instant, Message, MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import ResultState

REVISION_HEADER = "Gpu-Runtime-Revision"
"""The header with the revision of the record. If it is absent or stale, the consumer reads the record."""

RECORD_HEADER = "Gpu-Runtime-Record"
"""The header with the record at the revision in REVISION_HEADER."""


class RecordState(StrEnum):
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    TERMINAL = "terminal"


_STATE_ORDER = tuple(RecordState)


class InvocationRecord(Message, frozen=True, kw_only=True):
    request_hash: str
    """The hash of the request. A request with the same ID and another hash is rejected."""

    serverless_request_id: str = field(name="serverlessRequestID")
    state: RecordState = field(default=RecordState.QUEUED, name="state")
    enqueued_at: Instant
    deadline: Instant
    updated_at: Instant

    cancelled: bool = False
    """Whether the caller cancelled the invocation. The record becomes terminal when the result store has stored the
    result."""

    worker: str = ""
    """The name of the unit that runs the invocation or ran it last."""

    result_state: ResultState | None = None
    """The state of the result. None until the record is terminal."""


@dataclass(frozen=True)
class RecordAtRevision:
    """A record and its revision in the bucket."""

    record: InvocationRecord
    revision: int


def decode_record(value: bytes, revision: int) -> RecordAtRevision:
    """Decode a value of the bucket. Raises MessageDecodeError if the value is malformed."""
    return RecordAtRevision(decode(value, InvocationRecord), revision)


def record_headers(stored: RecordAtRevision) -> dict[str, str]:
    """Return the headers for a message. The sender must have just written or read the record."""
    return {REVISION_HEADER: str(stored.revision), RECORD_HEADER: encode(stored.record).decode()}


def record_from_headers(headers: Mapping[str, str]) -> RecordAtRevision | None:
    """Return the record in the headers of a message, or None if a header is absent or malformed."""
    revision, record = headers.get(REVISION_HEADER, ""), headers.get(RECORD_HEADER, "")
    if not record or not is_stream_sequence(revision):
        return None
    try:
        return decode_record(record.encode(errors="replace"), int(revision))
    except MessageDecodeError:
        return None


def advance_record(record: InvocationRecord, state: RecordState, now: datetime, worker: str = "") -> InvocationRecord:
    """Return the record in the new state. A record in a later state does not change: a redelivery does not reset it."""
    if _STATE_ORDER.index(state) < _STATE_ORDER.index(record.state) or record.state is RecordState.TERMINAL:
        return record
    return msgspec.structs.replace(record, state=state, updated_at=now, worker=worker or record.worker)


def finish_record(record: InvocationRecord, result: ResultState, now: datetime) -> InvocationRecord:
    """Return the terminal record. A record that is already terminal does not change: the first result is final."""
    if record.state is RecordState.TERMINAL:
        return record
    return msgspec.structs.replace(record, state=RecordState.TERMINAL, result_state=result, updated_at=now)


def cancel_record(record: InvocationRecord, now: datetime) -> InvocationRecord:
    """Return the record, marked as cancelled. A terminal record stays unchanged."""
    if record.state is RecordState.TERMINAL or record.cancelled:
        return record
    return msgspec.structs.replace(record, cancelled=True, updated_at=now)
