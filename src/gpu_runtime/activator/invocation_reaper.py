"""Ends what waits for nobody: it is too late, or taken back, or its function is gone; and takes out what was done and
is still there. The leader alone does this.

A worker that has work in hand ends it itself, also when its time is over: the reaper comes a little later. If both end
it, the result that is stored first stands.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import Enum, auto

from gpu_runtime.activator.deadline_queue import DeadlineQueue
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import (
    TerminalOutcome,
    TerminalResultPublisher,
    cancelled_outcome,
    expired_outcome,
    function_deleted_outcome,
)
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_id import check_subject
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    decode_record,
    record_from_headers,
)
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Failure, ResultState
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import WILDCARD, BadSubject, Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import Delivery
from gpu_runtime.jetstream.errors import JetStreamError, NatsNotFound
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.stream_admin import ack_floor, delete_consumer, stream_info
from gpu_runtime.jetstream.stream_messages import StoredMessage, delete_message, next_message
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.kube.errors import KubeError

logger = logging.getLogger(__name__)

MIN_MESSAGE_AGE = timedelta(seconds=1)
"""Work of a function with free workers is done before it is this old: it need not be looked at."""
REAP_BATCH_SIZE = 100
"""How much work of one function is looked at before the others' has its turn again."""
ACKNOWLEDGED_SCAN_INTERVAL = timedelta(seconds=10)
"""How often it is looked for what was done and is still there: only a server that met a full disk leaves some."""
MAX_STALE_DEADLINES = 1000
"""How much more than twice the work that waits may be remembered before it is read anew."""
NEVER = datetime.min.replace(tzinfo=UTC)
_ZERO = timedelta()


class ReapDecision(Enum):
    """How an invocation stands against an ending that is thought of."""

    ALREADY_TERMINAL = auto()
    SKIP = auto()
    """It is not for the reaper to end it, or not in this way."""
    TERMINATE = auto()


def reap_decision(record: InvocationRecord, ending: TerminalOutcome) -> ReapDecision:
    if record.state is RecordState.TERMINAL:
        return ReapDecision.ALREADY_TERMINAL
    in_hand = record.state is RecordState.RUNNING and ending.state is not ResultState.EXPIRED
    mistaken = ending.state is ResultState.CANCELLED and not record.cancelled
    return ReapDecision.SKIP if in_hand or mistaken else ReapDecision.TERMINATE


@dataclass
class InvocationReaper:
    nats: NatsConnection
    topology: StreamTopology
    records: KeyValueBucket
    functions: FunctionLister
    terminal_results: TerminalResultPublisher
    settings: ReaperSettings
    metrics: ActivatorMetrics
    clock: Callable[[], datetime]
    _deadlines: DeadlineQueue = field(default_factory=DeadlineQueue)
    _next_sequence: int = 1
    """The number from which on the stream has not been read yet."""
    _stream_created_at: str = ""
    """When the stream was made that was read."""
    _cancelled: set[str] = field(default_factory=set)
    _observed_functions: set[str] = field(default_factory=set)
    """Functions that were seen, whose consumers are there."""
    _missing_since: dict[str, datetime] = field(default_factory=dict)
    """Since when a function that has work, or had a consumer, is not there."""
    _acknowledged_scan_at: datetime = NEVER
    _wake: asyncio.Event = field(default_factory=asyncio.Event)
    _stopped: bool = False
    _running: bool = False

    async def run(self) -> None:
        """Reap until told to stop."""
        await self.functions.units.wait_for_sync()
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
        except JetStreamError as error:  # the next pass comes soon
            logger.warning("the reaper was interrupted", extra={"error": str(error)})
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.settings.poll_interval_seconds):
                await self._wake.wait()
        self._wake.clear()

    def stop(self) -> None:
        self._stopped = True
        self._wake.set()

    def cancel(self, invocation_id: str) -> None:
        """A caller took an invocation back."""
        if self._running:
            self._cancelled.add(invocation_id)
            self._wake.set()

    async def run_once(self) -> None:
        held = await stream_info(self.nats, self._stream_name, self.topology.subjects.all_in_stream(Stream.DISPATCH))
        counts = {subject.rpartition(".")[2]: count for subject, count in held.messages_by_subject.items()}
        if (
            held.created_at != self._stream_created_at
            or len(self._deadlines) > 2 * sum(counts.values()) + MAX_STALE_DEADLINES
        ):
            self._deadlines.clear()
            self._next_sequence, self._stream_created_at = 1, held.created_at
        await self._read_stream(include_recent=bool(self._cancelled))
        await self._reap_cancelled()
        await self._reap_expired()
        await self._reap_deleted_functions(counts)
        await self._delete_all_acknowledged(counts)

    async def _read_stream(self, *, include_recent: bool) -> None:
        """Learn what waits, up to what came just now; eagerly, that too."""
        youngest = self.clock() - (_ZERO if include_recent else MIN_MESSAGE_AGE)
        while (kept := await self._next_message(self._next_sequence)) and (
            include_recent or kept.published_at <= youngest
        ):
            self._next_sequence = kept.sequence + 1
            with contextlib.suppress(MessageDecodeError):  # whoever takes it gives it up
                self._deadlines.add(kept.sequence, decode(kept.data, Dispatch))

    async def _reap_expired(self) -> None:
        over_by = self.clock() - timedelta(seconds=self.settings.deadline_grace_seconds)
        while (sequence := self._deadlines.first_expired(over_by)) is not None:
            await self._reap_sequence(sequence, expired_outcome())
            self._deadlines.pop_first()

    async def _reap_cancelled(self) -> None:
        for invocation_id in tuple(self._cancelled):
            sequence = self._deadlines.sequence_of(invocation_id)
            if sequence is not None:
                await self._reap_sequence(sequence, cancelled_outcome())
            self._cancelled.discard(invocation_id)

    async def _reap_deleted_functions(self, counts: dict[str, int]) -> None:
        self._observed_functions |= self.functions.request_ids()
        there = {
            each for each in self._observed_functions | counts.keys() if self.functions.by_request_id(each) is not None
        }
        if not self.functions.cache_is_fresh():
            return
        now, absent = self.clock(), (self._observed_functions | counts.keys()) - there
        self._missing_since = {each: self._missing_since.get(each, now) for each in absent}
        for request_id, since in self._missing_since.items():
            if (
                now - since
            ).total_seconds() >= self.settings.deleted_function_grace_seconds and await self._confirm_not_found(
                request_id
            ):
                await self._reap_function(request_id)

    async def _confirm_not_found(self, request_id: str) -> bool:
        try:
            return await self.functions.confirm_not_found(request_id)
        except KubeError as error:
            logger.warning("whether a function is there cannot be known", extra={"error": str(error)})
            return False

    async def _reap_function(self, request_id: str) -> None:
        sequence, left, ended = 1, False, 0
        subject = self.topology.subjects.all_in_stream(Stream.DISPATCH).removesuffix(WILDCARD) + request_id
        while kept := await self._next_message(sequence, subject):
            if ended == REAP_BATCH_SIZE:
                self._wake.set()  # the rest at once, but after what is over or taken back elsewhere
                return
            was_ended = await self._reap(kept, function_deleted_outcome())
            sequence, left, ended = kept.sequence + 1, left or not was_ended, ended + was_ended
        if not left:
            with contextlib.suppress(BadSubject):  # of a queue that no function can have, somebody's message lay there
                await delete_consumer(self.nats, self.topology.dispatch_consumer(request_id))
            self._observed_functions.discard(request_id)

    async def _delete_all_acknowledged(self, counts: dict[str, int]) -> None:
        """Take out what was acknowledged and is still there. Nobody gets it again, and it would count as work."""
        if self.clock() - self._acknowledged_scan_at < ACKNOWLEDGED_SCAN_INTERVAL:
            return
        for request_id in counts:
            with contextlib.suppress(BadSubject, NatsNotFound):  # no function's queue, or nobody has taken from it yet
                await self._delete_acknowledged(request_id, self.topology.dispatch_consumer(request_id))
        self._acknowledged_scan_at = self.clock()

    async def _delete_acknowledged(self, request_id: str, consumer: ConsumerSpec) -> None:
        floor, sequence = await ack_floor(self.nats, consumer), 1
        for _ in range(REAP_BATCH_SIZE):
            kept = await self._next_message(sequence, consumer.filter_subject)
            if kept is None or kept.sequence > floor:
                return
            if await self._is_terminal(kept) and await delete_message(self.nats, self._stream_name, kept.sequence):
                logger.warning("it was done, and taken out", extra={"function": request_id, "sequence": kept.sequence})
            sequence = kept.sequence + 1

    async def _is_terminal(self, kept: StoredMessage) -> bool:
        """Whether its record says so. Its result may still wait to be stored; and what the server takes for done and is
        not has its deadline."""
        try:
            known = await self._read_record(decode(kept.data, Dispatch))
        except MessageDecodeError:  # whoever took it has given it up
            return True
        return known is not None and known.record.state is RecordState.TERMINAL

    async def _reap_sequence(self, sequence: int, ending: TerminalOutcome) -> None:
        kept = await self._next_message(sequence)
        if kept is not None and kept.sequence == sequence:
            await self._reap(kept, ending)

    async def _reap(self, kept: StoredMessage, ending: TerminalOutcome) -> bool:
        """End it and take it out. False where a worker has it in hand, and is to end it."""
        try:
            dispatch = decode(kept.data, Dispatch)
            check_subject(dispatch.invocation, kept.subject, self.topology.subjects)
        except MessageDecodeError as error:
            await self._dead_letter(kept, str(error))
        else:
            if not await self._terminate(dispatch, kept, ending):
                return False
        await delete_message(self.nats, self._stream_name, kept.sequence)
        self.metrics.reaped.labels(ending.state.value).inc()
        return True

    async def _terminate(self, dispatch: Dispatch, kept: StoredMessage, ending: TerminalOutcome) -> bool:
        known = await self._read_record(dispatch)
        if known is not None:
            match reap_decision(known.record, ending):
                case ReapDecision.ALREADY_TERMINAL:
                    return True
                case ReapDecision.SKIP:
                    return False
        await self.terminal_results.publish(
            dispatch.invocation, ending, self.clock(), known or record_from_headers(kept.headers)
        )
        return True

    async def _read_record(self, dispatch: Dispatch) -> RecordAtRevision | None:
        """What the records have of it; None where that is nothing, or nothing that can be read."""
        entry = await self.records.get(dispatch.invocation.invocation_id)
        with contextlib.suppress(MessageDecodeError):
            return decode_record(entry.value, entry.revision) if entry is not None else None
        return None

    async def _dead_letter(self, kept: StoredMessage, why: str) -> None:
        """What nobody can read, and nobody will ever take, is kept as a dead letter."""
        failure = Failure(failure_class=FailureClass.BAD_MESSAGE, message=why)
        delivery = Delivery(
            kept.subject, kept.data, kept.headers, self._stream_name, kept.sequence, 0, kept.published_at
        )
        letters = DeadLetterBuilder(self.topology.subjects, Stream.DISPATCH)
        await self.terminal_results.publisher.publish(
            letters.to_outgoing(letters.build(delivery, failure, self.clock()))
        )

    async def _next_message(self, sequence: int, subject: str = "") -> StoredMessage | None:
        subject = subject or self.topology.subjects.all_in_stream(Stream.DISPATCH)
        return await next_message(self.nats, self._stream_name, subject, sequence)

    @property
    def _stream_name(self) -> str:
        return self.topology.stream_name(Stream.DISPATCH)
