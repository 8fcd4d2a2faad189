"""Handles one delivery of the RESULT stream: stores the result durably, finishes the invocation record, acknowledges.

If the process crashes between two steps, JetStream redelivers the message. The second delivery does not change the
stored result. It only completes the remaining steps.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_record import record_from_headers
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
    OutgoingMessage,
)
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_store.batch_writer import BatchWriter
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.result_store.record_finisher import RecordFinisher
from gpu_runtime.result_store.result_codec import dead_letter_message, read_result, row_from_result


@dataclass(frozen=True)
class ResultConsumer:
    batch_writer: BatchWriter
    record_finisher: RecordFinisher
    subjects: Subjects
    max_body_bytes: int
    metrics: ResultStoreMetrics

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        try:
            row = row_from_result(read_result(delivery, self.subjects, self.max_body_bytes))
        except Rejected as error:
            self.metrics.invalid_messages.inc()
            return DeadLetterDelivery(error.message, FailureClass.BAD_MESSAGE)
        try:
            outcome = await self.batch_writer.store(row)
            await self.record_finisher.finish(
                row.invocation_id, ResultState(outcome.state), record_from_headers(delivery.headers)
            )
        except RepositoryUnavailable as error:
            # No delay: this process is stopping, and another replica can handle the message immediately.
            return NakDelivery(f"result not stored: {error}", delay=0)
        except JetStreamError as error:
            return NakDelivery(f"result stored, but the invocation record was not updated: {error}")
        except MessageDecodeError as error:
            # A newer version of the platform wrote the record. Retry until this process is upgraded or the record
            # expires.
            return NakDelivery(f"result stored, but the invocation record cannot be decoded: {error}")
        return AckDelivery()

    def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> Sequence[OutgoingMessage]:
        return [dead_letter_message(DeadLetterBuilder(self.subjects, Stream.RESULT), delivery, outcome, now())]
