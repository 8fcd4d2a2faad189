"""Taking an invocation: one write that decides who is first, one message, and nothing else.

The message follows the write. Sent together they would be faster, and wrong: they go to two streams, and a message
whose record is refused would run another request under somebody's ID.

- Killed in between, nobody was told that it was taken. Whoever asks again finds the record and sends the message, which
  is stored once.
- Where the queue is full, the record is taken back, and the ID is as free as before.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from gpu_runtime.contract.errors import InvocationReused
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    record_headers,
)
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, StreamFull
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.invocations.invocation_admission import prepare_enqueue
from gpu_runtime.runtime_api.invocations.record_store import InvocationRecordStore

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EnqueueResult:
    record: InvocationRecord
    new: bool
    """Whether it was taken now and not by the same request before."""


@dataclass(frozen=True)
class InvocationEnqueuer:
    records: InvocationRecordStore
    publisher: Publisher
    subjects: Subjects
    clock: Clock

    async def enqueue(self, invocation: Invocation) -> EnqueueResult:
        """InvocationReused where its ID stands for another request; StreamError where NATS does not take it."""
        going, record = prepare_enqueue(invocation, self.clock.now())
        while True:
            revision = await self.records.create(going.invocation_id, record)
            if revision is not None:
                await self._publish_or_purge(going, RecordAtRevision(record, revision))
                return EnqueueResult(record, new=True)
            found = await self.records.read(going.invocation_id)
            if found is not None:  # else it was forgotten in between
                return await self._replay(going, record, found)

    async def _replay(self, invocation: Invocation, record: InvocationRecord, found: RecordAtRevision) -> EnqueueResult:
        if found.record.request_hash != record.request_hash:
            raise InvocationReused(f"invocationID {invocation.invocation_id!r} already stands for another request")
        if may_be_unpublished(found.record, self.clock.now()):
            as_first_taken = structs.replace(invocation, enqueued_at=found.record.enqueued_at)
            sent = await self._publish(as_first_taken, found)
            if not sent.duplicate:
                await self._restore_record(invocation.invocation_id, found.record)
        return EnqueueResult(found.record, new=False)

    async def _publish_or_purge(self, invocation: Invocation, known: RecordAtRevision) -> None:
        try:
            await self._publish(invocation, known)
        except (StreamFull, NatsMessageTooLarge):
            await self._purge_record(invocation.invocation_id, known.revision)
            raise

    async def _purge_record(self, invocation_id: str, revision: int) -> None:
        """Unless somebody else has got it further meanwhile."""
        try:
            await self.records.purge(invocation_id, revision)
        except JetStreamError as error:  # then it can be sent by the same request later, or expires
            logger.warning("a record was left behind", extra={"invocationID": invocation_id, "error": str(error)})

    async def _restore_record(self, invocation_id: str, record: InvocationRecord) -> None:
        """Have the record there, with the message: who was first may have met a full queue and taken it back."""
        if await self.records.read(invocation_id) is None:
            await self.records.create(invocation_id, record)

    async def _publish(self, invocation: Invocation, known: RecordAtRevision) -> PubAck:
        subject = self.subjects.invoke(invocation.serverless_request_id)
        return await self.publisher.publish(
            OutgoingMessage(subject, encode(invocation), invocation.message_id, record_headers(known))
        )


def may_be_unpublished(record: InvocationRecord, now: datetime) -> bool:
    """Whether the one who recorded it may have died before it sent the message, and sending it still helps."""
    return record.state is RecordState.QUEUED and not record.cancelled and now < record.deadline
