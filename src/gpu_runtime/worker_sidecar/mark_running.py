"""The record of an invocation, taken to `running` before its function is called."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, RecordState, advance_record, decode_record
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.jetstream.kv import KeyValueBucket


@dataclass(frozen=True)
class MarkedRunning:
    stored: RecordAtRevision | None
    """The record. None where it is no longer kept."""


@dataclass(frozen=True)
class NotRunnable:
    """There is nothing to do any more."""

    cancelled: bool
    """Taken back and not ended yet: whoever took it back may have died before the result was said."""
    stored: RecordAtRevision


async def mark_running(
    bucket: KeyValueBucket, invocation_id: str, known: RecordAtRevision | None, worker: str, now: datetime
) -> MarkedRunning | NotRunnable:
    """One conditional write where nothing happened since the dispatch. Where that is lost, the record says why."""
    while True:
        if known is not None:
            running = advance_record(known.record, RecordState.RUNNING, now, worker)
            if (written := await bucket.update(invocation_id, encode(running), known.revision)) is not None:
                return MarkedRunning(RecordAtRevision(running, written))
        entry = await bucket.get(invocation_id)
        if entry is None:
            return MarkedRunning(None)
        known = decode_record(entry.value, entry.revision)
        if known.record.cancelled or known.record.state is RecordState.TERMINAL:
            return NotRunnable(known.record.state is not RecordState.TERMINAL, known)
