"""Reads and changes invocation records. Every write is conditional, so that only one of several writers succeeds.

A missing record. The record expired because the retention of the bucket is too short, or an operator deleted it. A
process that has the message of the invocation creates the record again from the message. A process that has only the
ID changes nothing.

An unreadable record. A newer version of the platform or an operator wrote it. No process ends the invocation,
dead-letters its message or overwrites the record. The API returns 503. Every consumer naks the message with a delay, so
that the invocation continues when the process is upgraded or the record is repaired, deleted or expired.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Protocol

import msgspec

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation_messages import dispatched_record
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordEvent,
    Refusal,
    Started,
    decode_record,
    step,
)
from gpu_runtime.contract.messages.invocation_ticket import InvocationTicket
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, encode
from gpu_runtime.jetstream.delivery import NakDelivery
from gpu_runtime.jetstream.errors import WrongLastSequence
from gpu_runtime.jetstream.kv import KeyValueBucket, KeyValueEntry

logger = logging.getLogger(__name__)

MAX_WRITE_ATTEMPTS = 10
"""Maximum number of attempts to change a record. It is sufficient, because a record changes only a few times."""

UNREADABLE_RETRY_SECONDS = 30.0
"""Delay before a consumer processes a message again whose invocation record is unreadable."""

RENEWAL = timedelta(milliseconds=1)
"""How much a renewal advances `updated_at`."""

MAX_LOGGED_RECORDS = 1000
"""Number of unreadable records that the process remembers, so that it logs each of them once."""


class RecordUnreadable(Unavailable):
    """The record cannot be decoded. A retry succeeds after the record is repaired or the process is upgraded."""

    def to_nak(self) -> NakDelivery:
        return NakDelivery(self.message, UNREADABLE_RETRY_SECONDS)


class RecordMissing(Exception):
    """The record does not exist, and the process has no message from which it could create the record."""


class RecordReplaced(RecordMissing):
    """The record has expired, and another invocation has the same ID now."""


@dataclass(frozen=True)
class Applied:
    """The record after the event."""

    stored: RecordAtRevision


@dataclass(frozen=True)
class Refused:
    """The record does not allow the event."""

    refusal: Refusal
    stored: RecordAtRevision


@dataclass(frozen=True)
class InvocationRecordStore:
    bucket: KeyValueBucket
    _logged: set[tuple[str, int]] = field(default_factory=set)

    async def create(self, invocation_id: str, record: InvocationRecord) -> RecordAtRevision | None:
        """Create the record and return it, or return None if a record with this ID exists."""
        revision = await self.bucket.create(invocation_id, encode(record))
        return None if revision is None else RecordAtRevision(record, revision)

    async def renew(self, invocation_id: str, stored: RecordAtRevision) -> RecordAtRevision | None:
        """Write a new record again, and return it with its new revision. Return None if the record has changed.

        Afterwards, the process that created the record cannot purge it. `updated_at` shows that this was done.
        """
        if stored.record.updated_at != stored.record.enqueued_at:
            return stored
        record = msgspec.structs.replace(stored.record, updated_at=stored.record.updated_at + RENEWAL)
        revision = await self.bucket.update(invocation_id, encode(record), stored.revision)
        return None if revision is None else RecordAtRevision(record, revision)

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        """Return the record, or None if it does not exist. Raises RecordUnreadable."""
        entry = await self.bucket.get(invocation_id)
        return self.decode(entry) if entry else None

    async def apply(
        self,
        invocation_id: str,
        event: RecordEvent,
        known: RecordAtRevision | None,
        restore: Callable[[], InvocationRecord] | None = None,
        ticket: InvocationTicket | None = None,
    ) -> Applied | Refused:
        """Change the record as `step` decides.

        `known` is the record in the headers of a message. If the record still has that revision, one write is enough.
        `restore` returns the record to create if the record does not exist. Raises RecordMissing if there is none,
        RecordReplaced if the record does not belong to the ticket, RecordUnreadable, and WrongLastSequence if other
        processes change the record all the time.
        """
        stored = known
        for _ in range(MAX_WRITE_ATTEMPTS):
            if stored is not None:
                is_current = stored is not known  # the header may be stale: it is trusted only for a conditional write
                match step(stored.record, event):
                    case Refusal() as refusal:
                        if is_current:
                            return Refused(refusal, stored)
                    case record if record is stored.record:
                        if is_current:
                            return Applied(stored)
                    case record:
                        revision = await self.bucket.update(invocation_id, encode(record), stored.revision)
                        if revision is not None:
                            return Applied(RecordAtRevision(record, revision))
            stored = await self._read_own(invocation_id, ticket)
            if stored is None:
                if restore is None:
                    raise RecordMissing(invocation_id)
                stored = await self.create(invocation_id, restore())
        raise WrongLastSequence(
            f"the record of invocation {invocation_id} changed during each of {MAX_WRITE_ATTEMPTS} attempts to write it"
        )

    async def _read_own(self, invocation_id: str, ticket: InvocationTicket | None) -> RecordAtRevision | None:
        stored = await self.read(invocation_id)
        if stored is not None and ticket is not None and not ticket.matches(stored.record):
            raise RecordReplaced(invocation_id)
        return stored

    def decode(self, entry: KeyValueEntry) -> RecordAtRevision:
        try:
            return decode_record(entry.value, entry.revision)
        except MessageDecodeError as error:
            self._log_unreadable(entry, error)
            raise RecordUnreadable(f"the record of invocation {entry.key} is malformed: {error}") from error

    def _log_unreadable(self, entry: KeyValueEntry, error: MessageDecodeError) -> None:
        if (entry.key, entry.revision) not in self._logged:
            if len(self._logged) >= MAX_LOGGED_RECORDS:
                self._logged.clear()
            self._logged.add((entry.key, entry.revision))
            fields = {"invocation_id": entry.key, "error": str(error)}
            logger.warning(
                "invocation record is unreadable; the invocation waits until the process is upgraded or the record is"
                " deleted",
                extra=fields,
            )


class WorkerRecords(Protocol):
    """What a worker may do with records: start an invocation, and read the record of a dead-lettered one.

    The protocol hides how the worker reaches the records. Both methods can raise RecordUnreadable and JetStreamError.
    """

    async def start(self, dispatch: Dispatch, known: RecordAtRevision | None, now: datetime) -> Applied | Refused:
        """Record that this worker runs the invocation. `known` is the record in the headers of the dispatch.

        The worker may run the invocation only if the record allows it and has no termination afterwards.
        """
        ...

    async def read(self, invocation_id: str) -> RecordAtRevision | None: ...


@dataclass(frozen=True)
class DirectWorkerRecords:
    """Writes to the key-value bucket itself."""

    records: InvocationRecordStore
    worker: str

    async def start(self, dispatch: Dispatch, known: RecordAtRevision | None, now: datetime) -> Applied | Refused:
        event, invocation_id = Started(now, self.worker), dispatch.invocation.invocation_id
        return await self.records.apply(invocation_id, event, known, lambda: dispatched_record(dispatch))

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        return await self.records.read(invocation_id)
