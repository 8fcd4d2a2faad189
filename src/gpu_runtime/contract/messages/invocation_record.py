"""The record of an invocation in the key-value bucket: which request its ID stands for, and how far it has come.

Creating it is what accepts an invocation: of any number of replicas, one wins. The promise rests on this and not on
JetStream's deduplication, which forgets after a restart what was already taken from its queue.

Every message about an invocation carries, as headers, the record and its revision when it was sent: create, dispatched,
running and terminal are one conditional write each, with nothing to read first. Whoever loses such a write (the
invocation was cancelled, or is delivered a second time) reads the record and sees why.
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
"""The header with the record's revision. A message without it, or with one that is outrun, means: read the record."""

RECORD_HEADER = "Gpu-Runtime-Record"
"""The header with the record as it was at that revision."""


class RecordState(StrEnum):
    QUEUED = "queued"
    DISPATCHED = "dispatched"
    RUNNING = "running"
    TERMINAL = "terminal"


_STATE_ORDER = tuple(RecordState)


class InvocationRecord(Message, frozen=True, kw_only=True):
    request_hash: str
    """What was asked: the same ID with another hash is another request, and refused."""

    serverless_request_id: str = field(name="serverlessRequestID")
    state: RecordState = field(default=RecordState.QUEUED, name="state")
    enqueued_at: Instant
    deadline: Instant
    updated_at: Instant

    cancelled: bool = False
    """Whether the caller took it back. It becomes terminal when whoever holds it has noticed."""

    worker: str = ""
    """The unit that runs it, or ran it last."""

    result_state: ResultState | None = None
    """How it ended."""


@dataclass(frozen=True)
class RecordAtRevision:
    """A record, as of a revision."""

    record: InvocationRecord
    revision: int


def decode_record(value: bytes, revision: int) -> RecordAtRevision:
    """What the bucket has of an invocation at that revision, or Unreadable."""
    return RecordAtRevision(decode(value, InvocationRecord), revision)


def record_headers(known: RecordAtRevision) -> dict[str, str]:
    """The headers of a message, from whoever wrote or read the record last."""
    return {REVISION_HEADER: str(known.revision), RECORD_HEADER: encode(known.record).decode()}


def record_from_headers(headers: Mapping[str, str]) -> RecordAtRevision | None:
    """What a message's headers say of the record; None where they do not say all, or nothing that can be read."""
    revision, record = headers.get(REVISION_HEADER, ""), headers.get(RECORD_HEADER, "")
    if not record or not is_stream_sequence(revision):
        return None
    try:
        return decode_record(record.encode(errors="replace"), int(revision))
    except MessageDecodeError:
        return None


def advance_record(record: InvocationRecord, stage: RecordState, now: datetime, worker: str = "") -> InvocationRecord:
    """The record at a later stage; the record itself where it is as far already: redeliveries do not set it back."""
    if _STATE_ORDER.index(stage) < _STATE_ORDER.index(record.state) or record.state is RecordState.TERMINAL:
        return record
    return msgspec.structs.replace(record, state=stage, updated_at=now, worker=worker or record.worker)


def finish_record(record: InvocationRecord, result: ResultState, now: datetime) -> InvocationRecord:
    """The record of an invocation that has its result. The first result stands."""
    if record.state is RecordState.TERMINAL:
        return record
    return msgspec.structs.replace(record, state=RecordState.TERMINAL, result_state=result, updated_at=now)


def cancel_record(record: InvocationRecord, now: datetime) -> InvocationRecord:
    """The record of an invocation that its caller cancelled. What has ended stays as it ended."""
    if record.state is RecordState.TERMINAL or record.cancelled:
        return record
    return msgspec.structs.replace(record, cancelled=True, updated_at=now)
