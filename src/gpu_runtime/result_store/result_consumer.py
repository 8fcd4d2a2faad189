"""Handles one delivery of the RESULT stream: stores the result durably, finishes the invocation record, acknowledges.

If the process crashes between two steps, JetStream redelivers the message. The second delivery does not change the
stored result. It only completes the remaining steps.
"""

import contextlib
from dataclasses import dataclass
from datetime import UTC, datetime

import msgspec

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_messages import check_result, check_subject, dead_letter_failure
from gpu_runtime.contract.messages.invocation_record import ResultStored
from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket, TicketKeyring, header_record
from gpu_runtime.contract.messages.message_codec import decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Result, ResultState, with_body
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore, RecordMissing, RecordUnreadable
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
)
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import ResultRow
from gpu_runtime.result_store.batch_writer import BatchWriter
from gpu_runtime.result_store.metrics import ResultStoreMetrics


@dataclass(frozen=True)
class ResultConsumer:
    batch_writer: BatchWriter
    records: InvocationRecordStore
    publisher: Publisher
    subjects: Subjects
    max_body_bytes: int
    metrics: ResultStoreMetrics
    tickets: TicketKeyring
    ignored: IgnoredMessages

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        try:
            ticket = self.tickets.verify(delivery.headers)  # first, because it costs much less than the decoding
            result = read_result(delivery, self.subjects, self.max_body_bytes)
            check_result(result, ticket)
        except InvalidTicket as error:
            self.ignored.add(Stream.RESULT, delivery.subject, error)
            return AckDelivery()
        except Rejected as error:
            self.metrics.invalid_messages.inc()
            return DeadLetterDelivery(error.message, FailureClass.BAD_MESSAGE)
        row = row_from_result(result, ticket.enqueued_at)
        try:
            outcome = await self.batch_writer.store(row)
            # The record becomes terminal after the result is stored. So a reader of a terminal record always finds the
            # result. Nothing is left to do if the record has expired, or if another invocation has the ID now.
            event = ResultStored(datetime.now(UTC), ResultState(outcome.state))
            with contextlib.suppress(RecordMissing):
                known = header_record(delivery.headers, ticket)
                await self.records.apply(row.invocation_id, event, known, ticket=ticket)
        except RecordUnreadable as error:
            return error.to_nak()
        except RepositoryUnavailable as error:
            # No delay: this process is stopping, and another replica can handle the message immediately.
            return NakDelivery(f"result not stored: {error}", delay=0)
        except JetStreamError as error:
            return NakDelivery(f"result stored, but the invocation record was not updated: {error}")
        return AckDelivery()

    async def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> None:
        letters = DeadLetterBuilder(self.subjects, Stream.RESULT, self.tickets.message_id)
        now = to_utc_milliseconds(datetime.now(UTC))
        await self.publisher.publish(letters.message(delivery, dead_letter_failure(outcome), now))


def read_result(delivery: Delivery, subjects: Subjects, max_body_bytes: int) -> Result:
    """Decode a result and truncate its body.

    Raise MessageDecodeError if the message is not a valid result, or if its subject belongs to another function.
    """
    result = decode(delivery.data, Result)
    check_subject(result, delivery.subject, subjects)
    return truncate_body(result, max_body_bytes)


def truncate_body(result: Result, max_bytes: int) -> Result:
    """Truncate the body to `max_bytes`.

    If the sender has already truncated the body, `body_bytes` keeps the original size.
    """
    if len(result.body) <= max_bytes:
        return result
    truncated = with_body(result, result.content_type, result.body, max_bytes)
    return msgspec.structs.replace(truncated, body_bytes=max(result.body_bytes, truncated.body_bytes))


def row_from_result(result: Result, accepted_at: datetime) -> ResultRow:
    return ResultRow(
        invocation_id=result.invocation_id,
        request_id=result.serverless_request_id,
        state=result.state.value,
        head=encode(msgspec.structs.replace(result, body=b"")),
        body=result.body,
        accepted_at=accepted_at,
    )
