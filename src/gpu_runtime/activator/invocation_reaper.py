"""Ends dispatched invocations that no worker will run, and deletes their messages from the DISPATCH stream.

The reaper ends an invocation if its deadline passed, if the caller cancelled it, or if its function was deleted. The
reaper also deletes messages that were acknowledged and are still in the stream. It runs only on the leader.

A worker normally ends the invocations that it runs, also at the deadline. So the reaper waits for a grace period after
the deadline. If both end the same invocation, the result store keeps the result that it stores first. If the record of
an invocation is unreadable, the reaper does nothing and tries again later.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from gpu_runtime.activator.deadline_queue import DeadlineQueue
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import invocation_id_errors
from gpu_runtime.contract.messages.invocation_messages import check_ticket, dispatched_record, read_dispatch
from gpu_runtime.contract.messages.invocation_record import (
    Abandoned,
    DeadlinePassed,
    RecordAtRevision,
    Termination,
)
from gpu_runtime.contract.messages.invocation_ticket import (
    InvalidTicket,
    InvocationTicket,
    TicketKeyring,
    header_record,
)
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Failure
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import WILDCARD, BadSubject, Stream
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import (
    UNREADABLE_RETRY_SECONDS,
    InvocationRecordStore,
    RecordReplaced,
    RecordUnreadable,
)
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import Delivery
from gpu_runtime.jetstream.errors import JetStreamError, NatsNotFound
from gpu_runtime.jetstream.stream_admin import ack_floor, delete_consumer, stream_info
from gpu_runtime.jetstream.stream_messages import StoredMessage, delete_message, next_message
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.kube.errors import KubeError

logger = logging.getLogger(__name__)

MIN_MESSAGE_AGE = timedelta(seconds=1)
"""The reaper does not read younger messages, because a free worker finishes most invocations within this time."""
REAP_BATCH_SIZE = 100
"""Maximum number of messages of one function that the reaper processes before it continues with other functions."""
ACKNOWLEDGED_SCAN_INTERVAL = timedelta(seconds=10)
"""Interval between two scans for acknowledged messages that are still in the stream.

A NATS server leaves such messages only if its disk was full.
"""
MIN_PAUSE_SECONDS = 0.05
"""Pause between two passes, so that a flood of cancel messages does not cause passes without a pause."""
MAX_PENDING_CANCELS = 10_000
"""Maximum number of cancel messages that wait for the next pass."""
MAX_STALE_DEADLINES = 1000
"""Limit for deadlines of finished invocations in the queue.

If the queue contains more deadlines than twice the number of messages plus this limit, the reaper clears the queue and
reads the stream again.
"""
NEVER = datetime.min.replace(tzinfo=UTC)


@dataclass
class InvocationReaper:
    nats: NatsConnection
    topology: StreamTopology
    records: InvocationRecordStore
    functions: FunctionLister
    terminal_results: TerminalResultPublisher
    settings: ReaperSettings
    metrics: ActivatorMetrics
    clock: Callable[[], datetime]
    tickets: TicketKeyring
    ignored: IgnoredMessages
    _deadlines: DeadlineQueue = field(default_factory=DeadlineQueue)
    _next_sequence: int = 1
    """The first stream sequence that the reaper has not read yet."""
    _stream_created_at: str = ""
    """Creation time of the stream at the last read. The time changes if the stream is deleted and created again."""
    _cancelled: set[str] = field(default_factory=set)
    _observed_functions: set[str] = field(default_factory=set)
    """functionIDs of functions that this process has observed and whose DISPATCH consumer it has not deleted."""
    _missing_since: dict[str, datetime] = field(default_factory=dict)
    """When the reaper first found that a function does not exist but has messages or a consumer, by functionID."""
    _acknowledged_scan_at: datetime = NEVER
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _running: bool = False

    async def run(self) -> None:
        """Reap until stop() is called."""
        await self.functions.wait_for_sync()
        self._deadlines.clear()
        self._next_sequence, self._running = 1, True
        try:
            while not self._stopped:
                await self._poll()
        finally:
            self._running = False
            self._cancelled.clear()

    async def _poll(self) -> None:
        try:
            await self.run_once()
        except JetStreamError as error:
            fields = {"stream": self._stream_name, "error": str(error)}
            logger.warning("invocation reaper pass failed; the reaper will retry in the next pass", extra=fields)
        await asyncio.sleep(min(MIN_PAUSE_SECONDS, self.settings.poll_interval_seconds))
        await is_set_within(self._wake, self.settings.poll_interval_seconds)
        self._wake.clear()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def cancel(self, invocation_id: str) -> None:
        """End an invocation soon if its record says that its caller cancelled it.

        Other senders may be able to publish cancel messages, so their number and size are limited. If the reaper
        ignores a message, the worker that receives the dispatch ends the invocation.
        """
        is_full = len(self._cancelled) >= MAX_PENDING_CANCELS
        if self._running and not is_full and not any(invocation_id_errors(invocation_id)):
            self._cancelled.add(invocation_id)
            self._wake.set()

    async def run_once(self) -> None:
        info = await stream_info(self.nats, self._stream_name, self.topology.subjects.all_functions(Stream.DISPATCH))
        counts = {subject.rpartition(".")[2]: count for subject, count in info.messages_by_subject.items()}
        if (
            info.created_at != self._stream_created_at
            or len(self._deadlines) > 2 * sum(counts.values()) + MAX_STALE_DEADLINES
        ):
            self._deadlines.clear()
            self._next_sequence, self._stream_created_at = 1, info.created_at
        await self._read_stream(include_recent=bool(self._cancelled))
        await self._reap_cancelled()
        await self._reap_expired()
        await self._reap_deleted_functions(counts)
        await self._delete_all_acknowledged(counts)

    async def _read_stream(self, *, include_recent: bool) -> None:
        """Add the deadlines of new messages. Stop at messages younger than MIN_MESSAGE_AGE, unless `include_recent`."""
        newest = self.clock() - MIN_MESSAGE_AGE
        while (message := await self._next_message(self._next_sequence)) and (
            include_recent or message.published_at <= newest
        ):
            self._next_sequence = message.sequence + 1
            with contextlib.suppress(MessageDecodeError):  # the worker that receives the message dead-letters it
                self._deadlines.add(message.sequence, decode(message.data, Dispatch))

    async def _reap_expired(self) -> None:
        latest_deadline = self.clock() - self._worker_grace
        while (sequence := self._deadlines.first_expired(latest_deadline)) is not None:
            try:
                reaped = await self._reap_sequence(sequence, DeadlinePassed(self.clock(), self._worker_grace))
            except RecordUnreadable:
                reaped = False
            if reaped:
                self._deadlines.pop_first()
            else:  # the record is unreadable, or it has a later deadline than the message
                self._deadlines.postpone_first(self.clock() + timedelta(seconds=UNREADABLE_RETRY_SECONDS))

    async def _reap_cancelled(self) -> None:
        for invocation_id in tuple(self._cancelled):
            sequence = self._deadlines.sequence_of(invocation_id)
            if sequence is not None:
                with contextlib.suppress(RecordUnreadable):  # the worker that receives the dispatch tries again
                    await self._reap_sequence(sequence, None)
            self._cancelled.discard(invocation_id)

    async def _reap_deleted_functions(self, counts: dict[str, int]) -> None:
        self._observed_functions |= self.functions.ids()
        candidates = self._observed_functions | counts.keys()
        missing = {each for each in candidates if self.functions.by_id(each) is None}
        if not self.functions.cache_is_fresh():
            return
        now, grace = self.clock(), timedelta(seconds=self.settings.deleted_function_grace_seconds)
        self._missing_since = {each: self._missing_since.get(each, now) for each in missing}
        for function_id, since in self._missing_since.items():
            if now - since >= grace and await self._confirm_not_found(function_id):
                await self._reap_function(function_id)

    async def _confirm_not_found(self, function_id: str) -> bool:
        try:
            return await self.functions.confirm_not_found(function_id)
        except KubeError as error:
            fields = {"function_id": function_id, "error": str(error)}
            logger.warning("function lookup failed; the reaper will retry in the next pass", extra=fields)
            return False

    async def _reap_function(self, function_id: str) -> None:
        """End a batch of invocations of a deleted function. Delete the function's consumer when no message remains."""
        sequence, skipped, reaped = 1, False, 0
        subject = self.topology.subjects.all_functions(Stream.DISPATCH).removesuffix(WILDCARD) + function_id
        while message := await self._next_message(sequence, subject):
            if reaped == REAP_BATCH_SIZE:
                self._wake.set()  # start the next pass now, which first ends cancelled and expired invocations
                return
            try:
                was_reaped = await self._reap(message, Abandoned(self.clock(), Termination.FUNCTION_GONE))
            except RecordUnreadable:
                was_reaped = False
            sequence, skipped, reaped = message.sequence + 1, skipped or not was_reaped, reaped + was_reaped
        if not skipped:
            with contextlib.suppress(BadSubject):  # another program published the message: its functionID is invalid
                await delete_consumer(self.nats, self.topology.dispatch_consumer(function_id))
            self._observed_functions.discard(function_id)

    async def _delete_all_acknowledged(self, counts: dict[str, int]) -> None:
        """Delete messages that were acknowledged and are still in the stream.

        JetStream does not deliver such messages again, but the backlog would count them.
        """
        if self.clock() - self._acknowledged_scan_at < ACKNOWLEDGED_SCAN_INTERVAL:
            return
        for function_id in counts:
            # BadSubject: the functionID in the subject is invalid. NatsNotFound: the function has no consumer yet.
            with contextlib.suppress(BadSubject, NatsNotFound):
                await self._delete_acknowledged(function_id, self.topology.dispatch_consumer(function_id))
        self._acknowledged_scan_at = self.clock()

    async def _delete_acknowledged(self, function_id: str, consumer: ConsumerSpec) -> None:
        floor, sequence = await ack_floor(self.nats, consumer), 1
        for _ in range(REAP_BATCH_SIZE):
            message = await self._next_message(sequence, consumer.filter_subject)
            if message is None or message.sequence > floor:
                return
            if await self._is_terminal(message) and await delete_message(
                self.nats, self._stream_name, message.sequence
            ):
                fields = {"function_id": function_id, "stream": self._stream_name, "sequence": message.sequence}
                logger.warning(
                    "acknowledged message was still in the stream; the reaper deleted the message", extra=fields
                )
            sequence = message.sequence + 1

    async def _is_terminal(self, message: StoredMessage) -> bool:
        """Return whether the record of the invocation is terminal.

        If the record is not terminal, the result may not be stored yet, so the message must stay in the stream. If the
        server wrongly treats the message as acknowledged, the reaper ends the invocation after its deadline.
        """
        try:
            stored = await self.records.read(decode(message.data, Dispatch).invocation.invocation_id)
        except MessageDecodeError:  # the worker that received the message dead-lettered it
            return True
        except RecordUnreadable:
            return False
        return stored is not None and stored.record.finished

    async def _reap_sequence(self, sequence: int, event: DeadlinePassed | None) -> bool:
        message = await self._next_message(sequence)
        return message is None or message.sequence != sequence or await self._reap(message, event)

    async def _reap(self, message: StoredMessage, event: DeadlinePassed | Abandoned | None) -> bool:
        """End the invocation and delete its message. Return False if the invocation must continue.

        Without an event, end the invocation only if its record already has a termination: the caller cancelled it.
        """
        try:
            dispatch = read_dispatch(message.data, message.subject, self.topology.subjects)
            ticket = self.tickets.verify(message.headers)
            check_ticket(dispatch.invocation, dispatch.deadline, ticket)
            stored = await self._record_after(dispatch, message, ticket, event)
        except MessageDecodeError as error:
            await self._dead_letter(message, str(error))
        except InvalidTicket as error:
            self.ignored.add(Stream.DISPATCH, message.subject, error)
        except RecordReplaced:
            pass  # the invocation ended so long ago that its record has expired
        else:
            id_ = dispatch.invocation.invocation_id
            if stored is None or not (stored.record.finished or await self._publish_termination(id_, stored)):
                return False
        await delete_message(self.nats, self._stream_name, message.sequence)
        return True

    async def _record_after(
        self,
        dispatch: Dispatch,
        message: StoredMessage,
        ticket: InvocationTicket,
        event: DeadlinePassed | Abandoned | None,
    ) -> RecordAtRevision | None:
        id_, known = dispatch.invocation.invocation_id, header_record(message.headers, ticket)
        if event is None:
            stored = await self.records.read(id_)
            return stored if stored and ticket.matches(stored.record) else None
        return (await self.records.apply(id_, event, known, lambda: dispatched_record(dispatch), ticket)).stored

    async def _publish_termination(self, invocation_id: str, stored: RecordAtRevision) -> bool:
        return await self.terminal_results.publish_termination(invocation_id, stored, self.clock(), self._worker_grace)

    async def _dead_letter(self, message: StoredMessage, reason: str) -> None:
        """Publish a dead letter for a message that cannot be decoded and that no worker will receive."""
        failure = Failure(failure_class=FailureClass.BAD_MESSAGE, message=reason)
        delivery = Delivery(
            message.subject, message.data, message.headers, self._stream_name, message.sequence, 0, message.published_at
        )
        letters = DeadLetterBuilder(self.topology.subjects, Stream.DISPATCH, self.tickets.message_id)
        await self.terminal_results.results.publisher.publish(letters.message(delivery, failure, self.clock()))
        self.metrics.dead_letters.labels(Stream.DISPATCH.name).inc()

    async def _next_message(self, sequence: int, subject: str = "") -> StoredMessage | None:
        subject = subject or self.topology.subjects.all_functions(Stream.DISPATCH)
        return await next_message(self.nats, self._stream_name, subject, sequence)

    @property
    def _worker_grace(self) -> timedelta:
        return timedelta(seconds=self.settings.deadline_grace_seconds)

    @property
    def _stream_name(self) -> str:
        return self.topology.stream_name(Stream.DISPATCH)
