"""What becomes of a delivery: stored and on the disk, then its invocation's record ended, then acknowledged.

A crash in between means that it comes again: the stored result stands, and the rest is done then.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import known_from
from gpu_runtime.contract.messages.message_codec import Unreadable
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing, Retry
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.result_repository.errors import Unusable
from gpu_runtime.result_store.batch_writer import Batches
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import StoreMetrics
from gpu_runtime.result_store.record_finisher import Records
from gpu_runtime.result_store.result_codec import letter_of, read, row_of


@dataclass(frozen=True)
class Storing:
    batches: Batches
    records: Records
    subjects: Subjects
    body_limit: int
    metrics: StoreMetrics

    async def handle(self, delivery: Delivery) -> Outcome:
        try:
            row = row_of(read(delivery, self.subjects, self.body_limit))
        except Rejected as bad:
            self.metrics.unreadable.inc()
            return GiveUp(bad.message, FailureClass.BAD_MESSAGE)
        try:
            standing = await self.batches.stored(row)
            await self.records.end(row.invocation_id, ResultState(standing.state), known_from(delivery.headers))
        except Unusable as error:
            return Retry(f"not stored: {error}", delay=0)  # the process stops; another one may have it at once
        except StreamError as error:
            return Retry(f"stored, but its invocation's record is not ended: {error}")
        except Unreadable as error:  # of a newer version, until this process is upgraded or the record's time is over
            return Retry(f"stored, but its invocation's record cannot be read: {error}")
        return Done()

    def abandon(self, delivery: Delivery, outcome: GiveUp) -> Sequence[Outgoing]:
        return [letter_of(DeadLetters(self.subjects, Queue.RESULT), delivery, outcome, now())]
