"""What a worker may do with invocation records: start an invocation, and read the record of a dead-lettered one.

The protocol hides how the worker reaches the records. `DirectWorkerRecords` writes to the key-value bucket itself.
"""

from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation_messages import dispatched_record
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, Started
from gpu_runtime.invocation_records.record_store import Applied, InvocationRecordStore, Refused


class WorkerRecords(Protocol):
    """Both methods can raise RecordUnreadable and JetStreamError."""

    async def start(self, dispatch: Dispatch, known: RecordAtRevision | None, now: datetime) -> Applied | Refused:
        """Record that this worker runs the invocation. `known` is the record in the headers of the dispatch.

        The worker may run the invocation only if the record allows it and has no termination afterwards.
        """
        ...

    async def read(self, invocation_id: str) -> RecordAtRevision | None: ...


@dataclass(frozen=True)
class DirectWorkerRecords:
    records: InvocationRecordStore
    worker: str

    async def start(self, dispatch: Dispatch, known: RecordAtRevision | None, now: datetime) -> Applied | Refused:
        event, invocation_id = Started(now, self.worker), dispatch.invocation.invocation_id
        return await self.records.apply(invocation_id, event, known, lambda: dispatched_record(dispatch))

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        return await self.records.read(invocation_id)
