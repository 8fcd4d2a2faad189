"""From the queue of accepted invocations into the functions' own: two writes and a hint, and nothing is waited for.

    the record becomes `dispatched`   (conditional: a cancelled or ended invocation goes no further)
    the dispatch is stored            (from here a worker has it as soon as one is free)
    demand is told                    (whoever leads looks at the function's workers at once)

Where a worker is known to be free, the dispatch alone is stored: the worker makes the record `running` in the same
moment, under the same condition, and there is nothing to scale.

Every step may be repeated after a crash. What no worker may have any more ends here with its result.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runtime.activator.capacity import Room
from gpu_runtime.activator.demand_publisher import Demand
from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Dispatching
from gpu_runtime.activator.terminal_results import Endings, gone, taken_back, timed_out
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import check_address, invocation_hash
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    Known,
    Stage,
    advanced,
    headers_of,
    known_from,
    read_record,
)
from gpu_runtime.contract.messages.message_codec import Unreadable, decode, encode, utc
from gpu_runtime.contract.messages.result import Failure, ResultState, unsuccessful
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing, Retry
from gpu_runtime.jetstream.errors import Full, StreamError, TooLarge
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.kube.errors import KubeError

PATIENT = Backoff(first=0.25, longest=30.0)
"""Between tries at what only time changes: a queue that is full, a cache that is behind."""


@dataclass(frozen=True)
class Accepted:
    """An invocation in hand."""

    invocation: Invocation
    deadline: datetime
    known: Known | None
    """Its record, when it was sent. None: read it."""


class Over(Exception):
    """The invocation has ended, or was taken back: nothing is dispatched."""

    def __init__(self, *, cancelled: bool) -> None:
        super().__init__()
        self.cancelled = cancelled


@dataclass(frozen=True)
class Dispatcher:
    topology: Topology
    publisher: Publisher
    records: Bucket
    functions: Functions
    room: Room
    demand: Demand
    endings: Endings
    settings: Dispatching
    metrics: ActivatorMetrics
    clock: Callable[[], datetime]
    _queues: set[str] = field(default_factory=set)
    """Functions whose consumers were seen to be there."""

    async def handle(self, delivery: Delivery) -> Outcome:
        if delivery.attempt > 1:
            self.metrics.redeliveries.inc()
        try:
            accepted = read(delivery, self.topology.subjects)
        except Unreadable as error:
            return GiveUp(str(error), FailureClass.BAD_MESSAGE)
        try:
            return await self._decide(delivery, accepted)
        except Full as error:
            return Retry(f"the function's queue is full: {error}", PATIENT.delay(delivery.attempt))
        except (TooLarge, Unreadable) as error:
            return GiveUp(str(error), FailureClass.BAD_MESSAGE)
        except StreamError as error:
            return Retry(str(error))

    def abandon(self, delivery: Delivery, outcome: GiveUp) -> Sequence[Outgoing]:
        """A dead letter, and the result that says so where it is known of which invocation."""
        self.metrics.dead_letters.inc()
        failure = Failure(failure_class=_class_of(outcome), message=outcome.reason)
        letters = DeadLetters(self.topology.subjects, Queue.INVOKE)
        try:
            accepted = read(delivery, self.topology.subjects)
        except Unreadable:
            return [letters.outgoing(letters.letter(delivery, failure, self.clock()))]
        invocation = accepted.invocation
        letter = letters.letter(delivery, failure, self.clock(), invocation.invocation_id)
        result = unsuccessful(invocation, ResultState.DEAD_LETTERED, failure, self.clock())
        return [letters.outgoing(letter), self.endings.outgoing(result, accepted.known)]

    async def _decide(self, delivery: Delivery, accepted: Accepted) -> Outcome:
        invocation, now = accepted.invocation, self.clock()
        if now >= accepted.deadline:
            await self.endings.end(invocation, timed_out(), now, accepted.known)
            return Done()
        if self.functions.serving(invocation.serverless_request_id) is None:
            return await self._unknown(delivery, accepted, now)
        if delivery.attempt == 1 and accepted.known and self.room.take(invocation.serverless_request_id):
            await self._dispatch(accepted, accepted.known, now)
            return Done()
        try:
            known = await self._recorded(accepted, now)
        except Over as over:
            if over.cancelled:  # whoever took it back may have died before it could say so
                await self.endings.end(invocation, taken_back(), now, None)
            return Done()
        await self._dispatch(accepted, known, now)
        await self.demand.tell(invocation.serverless_request_id)
        return Done()

    async def _unknown(self, delivery: Delivery, accepted: Accepted, now: datetime) -> Outcome:
        waited = (now - delivery.stored_at).total_seconds()
        if not self.functions.certain():
            return Retry("the functions are not known here for certain", PATIENT.delay(delivery.attempt))
        if waited < self.settings.unknown_seconds:
            return Retry("the function is not known here yet", 0.2)
        try:
            if not await self.functions.is_gone(accepted.invocation.serverless_request_id):
                return Retry("the function was not known here yet", 0)
        except KubeError as error:
            return Retry(f"whether the function is there cannot be known: {error}", PATIENT.delay(delivery.attempt))
        await self.endings.end(accepted.invocation, gone(), now, accepted.known)
        return Done()

    async def _recorded(self, accepted: Accepted, now: datetime) -> Known:
        """The record that says `dispatched`. Over where it says more than that."""
        id_, known = accepted.invocation.invocation_id, accepted.known
        while True:
            if known is not None:
                dispatched = advanced(known.record, Stage.DISPATCHED, now)
                written = await self.records.update(id_, encode(dispatched), known.revision)
                if written is not None:
                    return Known(dispatched, written)
            entry = await self.records.get(id_)
            if entry is None:  # forgotten before its time was over, which only a short retention does
                dispatched = advanced(_record(accepted), Stage.DISPATCHED, now)
                written = await self.records.create(id_, encode(dispatched))
                if written is not None:
                    return Known(dispatched, written)
                continue
            known = read_record(entry.value, entry.revision)
            record = known.record
            if record.cancelled or record.stage in (Stage.RUNNING, Stage.TERMINAL):
                raise Over(cancelled=record.cancelled and record.stage is not Stage.TERMINAL)
            if record.stage is Stage.DISPATCHED:
                return known

    async def _dispatch(self, accepted: Accepted, known: Known, now: datetime) -> None:
        invocation = accepted.invocation
        request_id = invocation.serverless_request_id
        if request_id not in self._queues:
            await ensure_consumer(self.publisher.connection, self.topology.work(request_id))
            self._queues.add(request_id)
        dispatch = Dispatch(invocation=invocation, deadline=accepted.deadline, dispatched_at=utc(now))
        await self.publisher.publish(
            Outgoing(
                self.topology.subjects.dispatch(request_id),
                encode(dispatch),
                dispatch.message_id,
                headers_of(known),
            )
        )
        self.metrics.dispatched.inc()
        if invocation.enqueued_at:
            self.metrics.queue_age.observe(max(0.0, (now - invocation.enqueued_at).total_seconds()))


def read(delivery: Delivery, subjects: Subjects) -> Accepted:
    """What was delivered. Unreadable where it is no invocation, or none of this subject."""
    invocation = decode(delivery.data, Invocation)
    check_address(invocation, delivery.subject, subjects)
    deadline = invocation.deadline or delivery.stored_at + timedelta(seconds=invocation.timeout_seconds)
    return Accepted(invocation, utc(deadline), known_from(delivery.headers))


def _record(accepted: Accepted) -> InvocationRecord:
    """The record as it was when the invocation was accepted."""
    invocation = accepted.invocation
    since = invocation.enqueued_at or accepted.deadline - timedelta(seconds=invocation.timeout_seconds)
    return InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        enqueued_at=since,
        deadline=accepted.deadline,
        updated_at=since,
    )


def _class_of(outcome: GiveUp) -> FailureClass:
    return FailureClass(outcome.kind) if outcome.kind else FailureClass.INTERNAL
