"""Writes the state `running` to the record of an invocation, unless the invocation is cancelled or terminal."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, RecordState, advance_record, decode_record
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.jetstream.kv import KeyValueBucket


@dataclass(frozen=True)
class MarkedRunning:
    """The worker may run the invocation."""

    stored: RecordAtRevision | None
    """The record after the write. None if the record has expired from the bucket."""


@dataclass(frozen=True)
class NotRunnable:
    """The worker must not run the invocation, because the invocation is cancelled or already has a result."""

    cancelled: bool
    """Whether the caller cancelled the invocation and the invocation has no result yet. If so, the process that
    recorded the cancellation may have died before it published the result."""
    stored: RecordAtRevision


async def mark_running(
    bucket: KeyValueBucket, invocation_id: str, stored: RecordAtRevision | None, worker: str, now: datetime
) -> MarkedRunning | NotRunnable:
    """Advance the record to `running` under optimistic concurrency.

    If the record has not changed since the dispatch, one conditional write is enough. If the write conflicts, read the
    current record, which shows whether the invocation may still run.
    """
    while True:
        if stored is not None:
            running = advance_record(stored.record, RecordState.RUNNING, now, worker)
            if (revision := await bucket.update(invocation_id, encode(running), stored.revision)) is not None:
                return MarkedRunning(RecordAtRevision(running, revision))
        entry = await bucket.get(invocation_id)
        if entry is None:
            return MarkedRunning(None)
        stored = decode_record(entry.value, entry.revision)
        if stored.record.cancelled or stored.record.state is RecordState.TERMINAL:
            return NotRunnable(stored.record.state is not RecordState.TERMINAL, stored)
