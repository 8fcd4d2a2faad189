"""Enqueues an invocation: creates its record in the key-value bucket, then publishes its message to the stream.

If concurrent requests have the same invocationID, the creation of the record decides which of them is first. The
message is published only after the record exists. Writing both at the same time would be faster but wrong, because they
go to two streams: if the record were rejected, the message could still be stored. Then a different request would run
under an invocationID that is already in use.

- If the process crashes between the two writes, the caller receives no response. A retry finds the record and publishes
  the message. JetStream stores the message only once.
- If the stream is full, the enqueuer purges the record that it created, so that the invocationID is unused again. A
  retry at another replica may find the record before the purge. So a retry first writes the record again, which changes
  its revision, and then publishes the message. Then the purge, which is conditional, does not delete the record.
"""

import logging
from dataclasses import dataclass
from datetime import datetime

from msgspec import structs

from gpu_runtime.contract.errors import InvocationReused, Overloaded
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import invoke_message, new_record
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, may_be_unpublished
from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.contract.messages.message_codec import to_utc_milliseconds
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, StreamFull
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.invocations.queue_shares import QueueCapacity

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class EnqueueResult:
    record: InvocationRecord
    new: bool
    """Whether this request enqueued the invocation. False if an earlier identical request enqueued it."""


@dataclass(frozen=True)
class InvocationEnqueuer:
    records: InvocationRecordStore
    publisher: Publisher
    subjects: Subjects
    clock: Clock
    tickets: TicketKeyring
    capacity: QueueCapacity

    async def enqueue(self, invocation: Invocation) -> EnqueueResult:
        """Record and publish the invocation.

        Raises InvocationReused if another request has used the ID. Raises Overloaded if the queues have no capacity for
        a new invocation. Raises JetStreamError if NATS does not store the record or the message.
        """
        await self._require_capacity(invocation)
        enqueued, record = prepare_enqueue(invocation, self.clock.now())
        while True:
            created = await self.records.create(enqueued.invocation_id, record)
            if created is not None:
                await self._publish_or_purge(enqueued, created)
                return EnqueueResult(record, new=True)
            stored = await self.records.read(enqueued.invocation_id)
            if stored is not None and await self._replay(enqueued, record, stored):
                return EnqueueResult(stored.record, new=False)
            # The record expired, or another process purged or changed it in the meantime.

    async def _require_capacity(self, invocation: Invocation) -> None:
        """Raise Overloaded if there is no capacity, unless an earlier request has enqueued the invocation."""
        try:
            await self.capacity.require(invocation)
        except Overloaded:
            if await self.records.read(invocation.invocation_id) is None:
                raise

    async def _replay(self, invocation: Invocation, record: InvocationRecord, stored: RecordAtRevision) -> bool:
        """Publish the message of the record if it may be missing. Return False if the record has changed."""
        if stored.record.request_hash != record.request_hash:
            raise InvocationReused(
                f"another request has used invocationID {invocation.invocation_id!r}; choose a new invocationID"
            )
        if may_be_unpublished(stored.record):
            kept = await self.records.renew(invocation.invocation_id, stored)
            if kept is None:
                return False
            accepted = stored.record  # a function that was created again must not get the work of the deleted one
            original = structs.replace(
                invocation,
                enqueued_at=accepted.enqueued_at,
                function_id=accepted.function_id,
                reply_to=accepted.reply_to,
            )
            await self._publish(original, kept)
        return True

    async def _publish_or_purge(self, invocation: Invocation, stored: RecordAtRevision) -> None:
        try:
            await self._publish(invocation, stored)
        except (StreamFull, NatsMessageTooLarge):
            await self._purge_record(invocation.invocation_id, stored.revision)
            raise

    async def _purge_record(self, invocation_id: str, revision: int) -> None:
        """Purge the record, unless another process has changed it."""
        try:
            await self.records.bucket.purge(invocation_id, revision)
        except JetStreamError as error:  # harmless: a retry publishes the message, or the record expires
            logger.warning(
                "record of a rejected invocation was not purged; the record will expire unless the caller"
                " repeats the request",
                extra={"invocation_id": invocation_id, "error": str(error)},
            )

    async def _publish(self, invocation: Invocation, stored: RecordAtRevision) -> None:
        await self.publisher.publish(invoke_message(self.subjects, invocation, stored, self.tickets))


def prepare_enqueue(invocation: Invocation, now: datetime) -> tuple[Invocation, InvocationRecord]:
    """Return the invocation to publish and its initial record."""
    enqueued_at = to_utc_milliseconds(now)
    enqueued = structs.replace(invocation, enqueued_at=enqueued_at)
    return enqueued, new_record(enqueued, enqueued_at, to_utc_milliseconds(enqueued.deadline or enqueued_at))
