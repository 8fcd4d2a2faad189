"""Dispatches invocations from the INVOKE stream to the DISPATCH subject of their function.

A dispatch consists of two writes and a hint. It never waits for a worker.

    1. Update the record to `dispatched`.   The update is conditional. If the invocation is cancelled, running or
                                            terminal, the dispatch ends here.
    2. Publish to the DISPATCH stream.      After this step the next free worker can pull the invocation.
    3. Publish demand.                      The leader reconciles the workers of the function immediately.

If a worker has reported free concurrency, the dispatcher does only step 2. The worker that pulls the invocation updates
the record to `running`, and this update is conditional too. Step 3 is not needed, because a worker is free.

Every step can be repeated after a crash. If an invocation can no longer run, the dispatcher publishes its result.
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
"""Delay before a redelivery if the DISPATCH stream is full, the function cache is stale or a function lookup failed."""


@dataclass(frozen=True)
class AcceptedInvocation:
    """A decoded message of the INVOKE stream."""

    invocation: Invocation
    deadline: datetime
    header_record: RecordAtRevision | None
    """The record at the time when the message was published, from the headers of the message. If it is None, the
    dispatcher reads the record from the bucket."""


class NotDispatchable(Exception):
    """The invocation is running, terminal or cancelled, so it must not be dispatched."""

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
    """requestIDs of functions for which this process has already called ensure_consumer()."""

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.delivery_count > 1:
            self.metrics.redeliveries.labels(Stream.INVOKE.name).inc()
        try:
            accepted = read_invocation(delivery, self.topology.subjects)
        except MessageDecodeError as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        try:
            return await self._process(delivery, accepted)
        except StreamFull as error:
            return NakDelivery(
                f"the DISPATCH stream is full for this function: {error}",
                DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count),
            )
        except (NatsMessageTooLarge, MessageDecodeError) as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        except JetStreamError as error:
            return NakDelivery(str(error))

    def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> Sequence[OutgoingMessage]:
        """Return the dead letter and, if the invocation can be decoded, its result."""
        self.metrics.dead_letters.labels(Stream.INVOKE.name).inc()
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
            record = await self._mark_dispatched(accepted, now)
        except NotDispatchable as stopped:
            if stopped.cancelled:  # the API may have crashed before it published the result of the cancelled invocation
                await self.terminal_results.publish(invocation, cancelled_outcome(), now, None)
            return AckDelivery()
        await self._publish_dispatch(accepted, record, now)
        await self.demand.publish(invocation.serverless_request_id)
        return AckDelivery()

    async def _handle_unknown_function(
        self, delivery: Delivery, accepted: AcceptedInvocation, now: datetime
    ) -> DeliveryOutcome:
        age_seconds = (now - delivery.published_at).total_seconds()
        if not self.functions.cache_is_fresh():
            return NakDelivery(
                "the function cache is not up to date", DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count)
            )
        if age_seconds < self.settings.unknown_function_grace_seconds:
            return NakDelivery("the function is not in the function cache yet", 0.2)
        try:
            if not await self.functions.confirm_not_found(accepted.invocation.serverless_request_id):
                return NakDelivery("the function exists but was not in the function cache", 0)
        except KubeError as error:
            return NakDelivery(
                f"the function lookup failed: {error}",
                DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count),
            )
        await self.terminal_results.publish(
            accepted.invocation, function_deleted_outcome(), now, accepted.header_record
        )
        return AckDelivery()

    async def _mark_dispatched(self, accepted: AcceptedInvocation, now: datetime) -> RecordAtRevision:
        """Update the record to `dispatched` and return it.

        Raise NotDispatchable if the invocation is running, terminal or cancelled.
        """
        id_, stored = accepted.invocation.invocation_id, accepted.header_record
        while True:
            if stored is not None:
                dispatched = advance_record(stored.record, RecordState.DISPATCHED, now)
                revision = await self.records.update(id_, encode(dispatched), stored.revision)
                if revision is not None:
                    return RecordAtRevision(dispatched, revision)
            entry = await self.records.get(id_)
            if entry is None:  # the retention of the bucket is too short: the record expired before the deadline
                dispatched = advance_record(_initial_record(accepted), RecordState.DISPATCHED, now)
                revision = await self.records.create(id_, encode(dispatched))
                if revision is not None:
                    return RecordAtRevision(dispatched, revision)
                continue
            stored = decode_record(entry.value, entry.revision)
            record = stored.record
            if record.cancelled or record.state in (RecordState.RUNNING, RecordState.TERMINAL):
                raise NotDispatchable(cancelled=record.cancelled and record.state is not RecordState.TERMINAL)
            if record.state is RecordState.DISPATCHED:
                return stored

    async def _publish_dispatch(self, accepted: AcceptedInvocation, record: RecordAtRevision, now: datetime) -> None:
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
                record_headers(record),
            )
        )
        self.metrics.dispatched.inc()
        if invocation.enqueued_at:
            self.metrics.dispatch_latency.observe(max(0.0, (now - invocation.enqueued_at).total_seconds()))


def read_invocation(delivery: Delivery, subjects: Subjects) -> AcceptedInvocation:
    """Decode a delivery. Raise MessageDecodeError if it is not an invocation or its subject names another function."""
    invocation = decode(delivery.data, Invocation)
    check_subject(invocation, delivery.subject, subjects)
    deadline = invocation.deadline or delivery.published_at + timedelta(seconds=invocation.timeout_seconds)
    return AcceptedInvocation(invocation, to_utc_milliseconds(deadline), record_from_headers(delivery.headers))


def _initial_record(accepted: AcceptedInvocation) -> InvocationRecord:
    """Return the record as the runtime API wrote it when it accepted the invocation."""
    invocation = accepted.invocation
    accepted_at = invocation.enqueued_at or accepted.deadline - timedelta(seconds=invocation.timeout_seconds)
    return InvocationRecord(
        request_hash=invocation_hash(invocation),
        serverless_request_id=invocation.serverless_request_id,
        enqueued_at=accepted_at,
        deadline=accepted.deadline,
        updated_at=accepted_at,
    )


def _failure_class(outcome: DeadLetterDelivery) -> FailureClass:
    return FailureClass(outcome.failure_class) if outcome.failure_class else FailureClass.INTERNAL
