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

from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import datetime

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import DispatchSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_messages import (
    AcceptedInvocation,
    dead_letter_failure,
    dead_lettered_result,
    dispatch_message,
    read_invocation,
)
from gpu_runtime.contract.messages.invocation_record import (
    NO_TAKEOVER,
    Abandoned,
    DeadlinePassed,
    Dispatched,
    RecordAtRevision,
    RecordEvent,
    Refusal,
    Termination,
    step,
)
from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket, TicketKeyring
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, to_utc_milliseconds
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import (
    Applied,
    InvocationRecordStore,
    RecordReplaced,
    RecordUnreadable,
    Refused,
)
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
)
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, StreamFull
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.kube.errors import KubeError

DISPATCH_RETRY_BACKOFF = Backoff(initial_seconds=0.25, max_seconds=30.0)
"""Delay before a redelivery if the DISPATCH stream is full, the function cache is stale or a function lookup failed."""


@dataclass(frozen=True)
class Dispatcher:
    topology: StreamTopology
    publisher: Publisher
    records: InvocationRecordStore
    functions: FunctionLister
    capacity: FunctionCapacity
    demand: DemandPublisher
    terminal_results: TerminalResultPublisher
    settings: DispatchSettings
    metrics: ActivatorMetrics
    clock: Callable[[], datetime]
    tickets: TicketKeyring
    ignored: IgnoredMessages
    _ensured_consumers: set[str] = field(default_factory=set)
    """functionIDs of functions for which this process has already called ensure_consumer()."""

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.delivery_count > 1:
            self.metrics.redeliveries.labels(Stream.INVOKE.name).inc()
        try:
            accepted = read_invocation(delivery, self.topology.subjects, self.tickets)
        except MessageDecodeError as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        except InvalidTicket as error:
            self.ignored.add(Stream.INVOKE, delivery.subject, error)
            return AckDelivery()
        return await self._process_or_retry(delivery, accepted)

    async def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> AckDelivery | NakDelivery | None:
        """Publish the dead letter and, if the invocation can be decoded, its result. Reply to the caller.

        Return a nak if the record is unreadable. Return an ack if a worker runs the invocation, or if the invocation
        has ended in another way.
        """
        failure, now, subjects = dead_letter_failure(outcome), self.clock(), self.topology.subjects
        letters = DeadLetterBuilder(subjects, Stream.INVOKE, self.tickets.message_id)
        try:
            accepted = read_invocation(delivery, subjects, self.tickets)
            stored = (await self._apply(accepted, Abandoned(now, Termination.DEAD_LETTERED))).stored
        except MessageDecodeError:
            await self.publisher.publish(letters.message(delivery, failure, now))
        except RecordUnreadable as error:
            return error.to_nak()
        except (InvalidTicket, RecordReplaced):
            return AckDelivery()
        else:
            if stored.record.termination is not Termination.DEAD_LETTERED:
                await self._publish_termination(accepted, stored, now)
                return AckDelivery()
            invocation = accepted.invocation
            letter = letters.message(delivery, failure, now, invocation)
            result = dead_lettered_result(invocation, failure, now)
            await self.terminal_results.results.publish_dead_letter(
                letter, result, stored, accepted.ticket_text, invocation.reply_to
            )
        self.metrics.dead_letters.labels(Stream.INVOKE.name).inc()
        return None

    async def _process_or_retry(self, delivery: Delivery, accepted: AcceptedInvocation) -> DeliveryOutcome:
        try:
            return await self._process(delivery, accepted)
        except StreamFull as error:
            return NakDelivery(
                f"the DISPATCH stream is full for this function: {error}",
                DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count),
            )
        except NatsMessageTooLarge as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        except RecordUnreadable as error:
            return error.to_nak()
        except RecordReplaced:  # the invocation ended so long ago that its record has expired
            return AckDelivery()
        except JetStreamError as error:
            return NakDelivery(str(error))

    async def _process(self, delivery: Delivery, accepted: AcceptedInvocation) -> DeliveryOutcome:
        function_id, now = accepted.invocation.function_id, self.clock()
        if now >= accepted.deadline:
            return await self._end(accepted, DeadlinePassed(now, NO_TAKEOVER))
        if self.functions.by_id(function_id) is None:
            return await self._handle_unknown_function(delivery, accepted, now)
        dispatched, header = Dispatched(now), accepted.header_record if delivery.delivery_count == 1 else None
        is_dispatchable = header is not None and not isinstance(step(header.record, dispatched), Refusal)
        if header and is_dispatchable and self.capacity.try_acquire(function_id):
            await self._publish_dispatch(accepted, header, now)
            return AckDelivery()
        match await self._apply(accepted, dispatched):
            case Applied(stored):
                await self._publish_dispatch(accepted, stored, now)
                await self.demand.publish(function_id)
            case Refused(_, stored):
                return await self._repeat_termination(accepted, stored, now)
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
            if not await self.functions.confirm_not_found(accepted.invocation.function_id):
                return NakDelivery("the function exists but was not in the function cache", 0)
        except KubeError as error:
            return NakDelivery(
                f"the function lookup failed: {error}",
                DISPATCH_RETRY_BACKOFF.delay(delivery.delivery_count),
            )
        return await self._end(accepted, Abandoned(now, Termination.FUNCTION_GONE))

    async def _end(self, accepted: AcceptedInvocation, event: DeadlinePassed | Abandoned) -> DeliveryOutcome:
        """End an invocation that no worker runs. A running invocation has a dispatch, so its worker ends it."""
        outcome = await self._apply(accepted, event)
        if isinstance(outcome, Refused) and outcome.refusal is Refusal.TOO_EARLY:
            remaining = (outcome.stored.record.deadline - event.at).total_seconds()
            return NakDelivery("the record has a later deadline than the message", remaining)
        return await self._repeat_termination(accepted, outcome.stored, event.at)

    async def _repeat_termination(
        self, accepted: AcceptedInvocation, stored: RecordAtRevision, now: datetime
    ) -> DeliveryOutcome:
        """Publish the result of the termination, or dead-letter the invocation again.

        The process that recorded the termination may have crashed before it published the result or the dead letter.
        """
        if stored.record.termination is Termination.DEAD_LETTERED:
            return DeadLetterDelivery("an earlier delivery dead-lettered the invocation")
        await self._publish_termination(accepted, stored, now)
        return AckDelivery()

    async def _apply(self, accepted: AcceptedInvocation, event: RecordEvent) -> Applied | Refused:
        id_ = accepted.invocation.invocation_id
        return await self.records.apply(
            id_, event, accepted.header_record, lambda: accepted.initial_record, accepted.ticket
        )

    async def _publish_termination(self, accepted: AcceptedInvocation, stored: RecordAtRevision, now: datetime) -> None:
        id_ = accepted.invocation.invocation_id
        await self.terminal_results.publish_termination(id_, stored, now, NO_TAKEOVER)

    async def _publish_dispatch(self, accepted: AcceptedInvocation, record: RecordAtRevision, now: datetime) -> None:
        invocation = accepted.invocation
        function_id = invocation.function_id
        if function_id not in self._ensured_consumers:
            await ensure_consumer(self.publisher.connection, self.topology.dispatch_consumer(function_id))
            self._ensured_consumers.add(function_id)
        dispatch = Dispatch(invocation=invocation, deadline=accepted.deadline, dispatched_at=to_utc_milliseconds(now))
        message = dispatch_message(
            self.topology.subjects, dispatch, record, accepted.ticket_text, self.tickets.message_id
        )
        await self.publisher.publish(message)
        self.metrics.dispatched.inc()
        if invocation.enqueued_at:
            self.metrics.dispatch_latency.observe(max(0.0, (now - invocation.enqueued_at).total_seconds()))
