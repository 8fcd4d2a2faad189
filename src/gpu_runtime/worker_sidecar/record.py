"""The record of an invocation, taken to `running` before its function is called."""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.identity import invocation_hash
from gpu_runtime.contract.messages.state import InvocationRecord, Stage, advanced
from gpu_runtime.contract.messages.wire import decode, encode
from gpu_runtime.jetstream.kv import Bucket


@dataclass(frozen=True)
class Begun:
    revision: int | None
    """Of the record. None where it is no longer kept."""


@dataclass(frozen=True)
class Over:
    """There is nothing to do any more."""

    cancelled: bool
    """Taken back and not ended yet: whoever took it back may have died before the result was said."""
    revision: int


async def begin(bucket: Bucket, dispatch: Dispatch, revision: int | None, worker: str, now: datetime) -> Begun | Over:
    """One conditional write where nothing happened since the dispatch. Where that is lost, the record says why."""
    key, record = dispatch.invocation.invocation_id, dispatched(dispatch, now)
    while True:
        if revision is not None:
            running = encode(advanced(record, Stage.RUNNING, now, worker))
            if (written := await bucket.update(key, running, revision)) is not None:
                return Begun(written)
        entry = await bucket.get(key)
        if entry is None:
            return Begun(None)
        record, revision = decode(entry.value, InvocationRecord), entry.revision
        if record.cancelled or record.stage is Stage.TERMINAL:
            return Over(record.stage is not Stage.TERMINAL, revision)


def dispatched(dispatch: Dispatch, now: datetime) -> InvocationRecord:
    """The record as it is if its revision is still that of the dispatch: all that it says, the dispatch says, too."""
    invocation = dispatch.invocation
    return InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        stage=Stage.DISPATCHED,
        enqueued_at=invocation.enqueued_at or dispatch.dispatched_at,
        deadline=dispatch.deadline,
        updated_at=now,
    )


def revision_of(header: str) -> int | None:
    return int(header) if header.isascii() and header.isdecimal() and len(header) < 20 else None
