"""Publishes results to the RESULT stream, and sends them to the callers that wait for them."""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runtime.contract.messages.invocation_messages import result_message, termination_result
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, termination_to_publish
from gpu_runtime.contract.messages.invocation_ticket import MessageIDs, TicketKeyring, ticket_headers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import PubAck, Publisher

logger = logging.getLogger(__name__)

REPLY_TIMEOUT_SECONDS = 2.0
"""Time limit for sending the reply to a caller that waits for the result."""


@dataclass(frozen=True)
class PublishedTermination:
    result: Result
    is_new: bool
    """Whether this process published the result first. The stream ignores a repeated result."""


@dataclass(frozen=True)
class ResultPublisher:
    subjects: Subjects
    publisher: Publisher
    message_ids: MessageIDs

    async def publish_dead_letter(
        self,
        letter: OutgoingMessage,
        result: Result | None,
        stored: RecordAtRevision | None,
        ticket: str,
        reply_to: str,
    ) -> None:
        """Publish a dead letter. Then publish the result, unless the invocation already has one."""
        await self.publisher.publish(letter)
        if result and not (stored and stored.record.finished):
            await self.publish(result, stored, ticket, reply_to)

    async def publish(self, result: Result, stored: RecordAtRevision | None, ticket: str, reply_to: str) -> PubAck:
        """Publish the result. Then send it to the caller if the caller waits for a reply."""
        ack = await self.publisher.publish(self.message(result, stored, ticket))
        await self.reply(result, ticket, reply_to)
        return ack

    def message(self, result: Result, stored: RecordAtRevision | None, ticket: str) -> OutgoingMessage:
        return result_message(self.subjects, result, stored, ticket, self.message_ids)

    async def reply(self, result: Result, ticket: str, reply_to: str) -> None:
        """Send the result to the caller that waits on this subject. If it is lost, the API reads the stored result.

        Send nothing if the subject is not a reply subject of the function.
        """
        if not self.subjects.is_reply(reply_to, result.function_id):
            return
        try:
            await self.publisher.connection.publish(
                reply_to, encode(result), headers=ticket_headers(ticket), timeout_seconds=REPLY_TIMEOUT_SECONDS
            )
        except JetStreamError as error:
            fields = {"invocation_id": result.invocation_id, "function": result.serverless_request_id}
            logger.warning(
                "invocation reply was not sent; the runtime API will read the stored result",
                extra=fields | {"error": str(error)},
            )


@dataclass(frozen=True)
class TerminationPublisher:
    """Publishes the results of invocations that a process of the platform ends. It signs their tickets itself."""

    results: ResultPublisher
    tickets: TicketKeyring

    async def publish_termination(
        self, invocation_id: str, stored: RecordAtRevision, now: datetime, worker_grace: timedelta
    ) -> PublishedTermination | None:
        """Publish the result of the termination in the record. Return None if this process must not publish it."""
        termination = termination_to_publish(stored.record, now, worker_grace)
        if termination is None:
            return None
        result = termination_result(invocation_id, stored.record, termination, now)
        ticket = self.tickets.sign_record(invocation_id, stored.record)
        ack = await self.results.publish(result, stored, ticket, stored.record.reply_to)
        return PublishedTermination(result, is_new=not ack.duplicate)


def new_termination_publisher(subjects: Subjects, publisher: Publisher, tickets: TicketKeyring) -> TerminationPublisher:
    return TerminationPublisher(ResultPublisher(subjects, publisher, tickets.message_id), tickets)
