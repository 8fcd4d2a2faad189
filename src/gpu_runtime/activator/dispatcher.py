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

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import DispatchSettings
from gpu_runtime.activator.terminal_results import (
    TerminalResultPublisher,
    cancelled_outcome,
    expired_outcome,
    function_deleted_outcome,
)
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import check_subject, invocation_hash
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    advance_record,
    decode_record,
    record_from_headers,
    record_headers,
)
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Failure, ResultState, unsuccessful_result
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
    OutgoingMessage,
)
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, StreamFull
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.kube.errors import KubeError

DISPATCH_RETRY_BACKOFF = Backoff(initial_seconds=0.25, max_seconds=30.0)
"""Between tries at what only time changes: a queue that is full, a cache that is behind."""


@dataclass(frozen=True)
class AcceptedInvocation:
    """An invocation in hand."""

    invocation: Invocation
    deadline: datetime
    header_record: RecordAtRevision | None
    """Its record, when it was sent. None: read it."""


class NotDispatchable(Exception):
    """The invocation has ended, or was taken back: nothing is dispatched."""

    def __init__(self, *, cancelled: bool) -> None:
        super().__init__()
        self.cancelled = cancelled


@dataclass(frozen=True)
class Dispatcher:
    topology: StreamTopology
    publisher: Publisher
    records: KeyValueBucket
    functions: FunctionLister
    capacity: FunctionCapacity
    demand: DemandPublisher
    terminal_results: TerminalResultPublisher
    settings: DispatchSettings
    metrics: ActivatorMetrics
    clock: Callable[[], datetime]
    _ensured_consumers: set[str] = field(default_factory=set)
    """Functions whose consumers were seen to be there."""

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.delivery_count > 1:
            self.metrics.redeliveries.inc()
        try:
            accepted = read_invocation(delivery, self.topology.subjects)
        except MessageDecodeError as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        try:
            return await self._process(delivery, accepted)
        except StreamFull as error:
            return NakDelivery(
                f"the function's queue is full: {error}", DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count)
            )
        except (NatsMessageTooLarge, MessageDecodeError) as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        except JetStreamError as error:
            return NakDelivery(str(error))

    def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> Sequence[OutgoingMessage]:
        """A dead letter, and the result that says so where it is known of which invocation."""
        self.metrics.dead_letters.inc()
        failure = Failure(failure_class=_failure_class(outcome), message=outcome.reason)
        letters = DeadLetterBuilder(self.topology.subjects, Stream.INVOKE)
        try:
            accepted = read_invocation(delivery, self.topology.subjects)
        except MessageDecodeError:
            return [letters.to_outgoing(letters.build(delivery, failure, self.clock()))]
        invocation = accepted.invocation
        letter = letters.build(delivery, failure, self.clock(), invocation.invocation_id)
        result = unsuccessful_result(invocation, ResultState.DEAD_LETTERED, failure, self.clock())
        return [letters.to_outgoing(letter), self.terminal_results.outgoing(result, accepted.header_record)]

    async def _process(self, delivery: Delivery, accepted: AcceptedInvocation) -> DeliveryOutcome:
        invocation, now = accepted.invocation, self.clock()
        if now >= accepted.deadline:
            await self.terminal_results.publish(invocation, expired_outcome(), now, accepted.header_record)
            return AckDelivery()
        if self.functions.by_request_id(invocation.serverless_request_id) is None:
            return await self._handle_unknown_function(delivery, accepted, now)
        if (
            delivery.delivery_count == 1
            and accepted.header_record
            and self.capacity.try_acquire(invocation.serverless_request_id)
        ):
            await self._publish_dispatch(accepted, accepted.header_record, now)
            return AckDelivery()
        try:
            known = await self._mark_dispatched(accepted, now)
        except NotDispatchable as over:
            if over.cancelled:  # whoever took it back may have died before it could say so
                await self.terminal_results.publish(invocation, cancelled_outcome(), now, None)
            return AckDelivery()
        await self._publish_dispatch(accepted, known, now)
        await self.demand.publish(invocation.serverless_request_id)
        return AckDelivery()

    async def _handle_unknown_function(
        self, delivery: Delivery, accepted: AcceptedInvocation, now: datetime
    ) -> DeliveryOutcome:
        waited = (now - delivery.published_at).total_seconds()
        if not self.functions.cache_is_fresh():
            return NakDelivery(
                "the functions are not known here for certain", DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count)
            )
        if waited < self.settings.unknown_function_grace_seconds:
            return NakDelivery("the function is not known here yet", 0.2)
        try:
            if not await self.functions.confirm_not_found(accepted.invocation.serverless_request_id):
                return NakDelivery("the function was not known here yet", 0)
        except KubeError as error:
            return NakDelivery(
                f"whether the function is there cannot be known: {error}",
                DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count),
            )
        await self.terminal_results.publish(
            accepted.invocation, function_deleted_outcome(), now, accepted.header_record
        )
        return AckDelivery()

    async def _mark_dispatched(self, accepted: AcceptedInvocation, now: datetime) -> RecordAtRevision:
        """The record that says `dispatched`. Over where it says more than that."""
        id_, known = accepted.invocation.invocation_id, accepted.header_record
        while True:
            if known is not None:
                dispatched = advance_record(known.record, RecordState.DISPATCHED, now)
                written = await self.records.update(id_, encode(dispatched), known.revision)
                if written is not None:
                    return RecordAtRevision(dispatched, written)
            entry = await self.records.get(id_)
            if entry is None:  # forgotten before its time was over, which only a short retention does
                dispatched = advance_record(_initial_record(accepted), RecordState.DISPATCHED, now)
                written = await self.records.create(id_, encode(dispatched))
                if written is not None:
                    return RecordAtRevision(dispatched, written)
                continue
            known = decode_record(entry.value, entry.revision)
            record = known.record
            if record.cancelled or record.state in (RecordState.RUNNING, RecordState.TERMINAL):
                raise NotDispatchable(cancelled=record.cancelled and record.state is not RecordState.TERMINAL)
            if record.state is RecordState.DISPATCHED:
                return known

    async def _publish_dispatch(self, accepted: AcceptedInvocation, known: RecordAtRevision, now: datetime) -> None:
        invocation = accepted.invocation
        request_id = invocation.serverless_request_id
        if request_id not in self._ensured_consumers:
            await ensure_consumer(self.publisher.connection, self.topology.dispatch_consumer(request_id))
            self._ensured_consumers.add(request_id)
        dispatch = Dispatch(invocation=invocation, deadline=accepted.deadline, dispatched_at=to_utc_milliseconds(now))
        await self.publisher.publish(
            OutgoingMessage(
                self.topology.subjects.dispatch(request_id),
                encode(dispatch),
                dispatch.message_id,
                record_headers(known),
            )
        )
        self.metrics.dispatched.inc()
        if invocation.enqueued_at:
            self.metrics.dispatch_latency.observe(max(0.0, (now - invocation.enqueued_at).total_seconds()))


def read_invocation(delivery: Delivery, subjects: Subjects) -> AcceptedInvocation:
    """What was delivered. Unreadable where it is no invocation, or none of this subject."""
    invocation = decode(delivery.data, Invocation)
    check_subject(invocation, delivery.subject, subjects)
    deadline = invocation.deadline or delivery.published_at + timedelta(seconds=invocation.timeout_seconds)
    return AcceptedInvocation(invocation, to_utc_milliseconds(deadline), record_from_headers(delivery.headers))


def _initial_record(accepted: AcceptedInvocation) -> InvocationRecord:
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


def _failure_class(outcome: DeadLetterDelivery) -> FailureClass:
    return FailureClass(outcome.failure_class) if outcome.failure_class else FailureClass.INTERNAL
