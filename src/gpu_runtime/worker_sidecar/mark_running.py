"""The record of an invocation, taken to `running` before its function is called."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.messages.invocation_record import Known, Stage, advanced, read_record
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.jetstream.kv import Bucket


@dataclass(frozen=True)
class Begun:
    known: Known | None
    """The record. None where it is no longer kept."""


@dataclass(frozen=True)
class Over:
    """There is nothing to do any more."""

    cancelled: bool
    """Taken back and not ended yet: whoever took it back may have died before the result was said."""
    known: Known


async def begin(bucket: Bucket, invocation_id: str, known: Known | None, worker: str, now: datetime) -> Begun | Over:
    """One conditional write where nothing happened since the dispatch. Where that is lost, the record says why."""
    while True:
        if known is not None:
            running = advanced(known.record, Stage.RUNNING, now, worker)
            if (written := await bucket.update(invocation_id, encode(running), known.revision)) is not None:
                return Begun(Known(running, written))
        entry = await bucket.get(invocation_id)
        if entry is None:
            return Begun(None)
        known = read_record(entry.value, entry.revision)
        if known.record.cancelled or known.record.stage is Stage.TERMINAL:
            return Over(known.record.stage is not Stage.TERMINAL, known)
