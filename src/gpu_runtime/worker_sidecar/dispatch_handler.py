"""Handles a delivery of a dispatch: advances the record, calls the framework, publishes the result, acks the message.

The record advances to `running` only if the invocation is neither cancelled nor terminal. If the invocation has waited
for a worker, the sidecar writes the record before it calls the function. If the dispatch is fresh, the sidecar starts
the call at the same time as the write, to save a round trip. If the write then shows that the invocation must not run,
the sidecar aborts the call, as it does if the caller cancels a running invocation.

The sidecar publishes the result to the RESULT stream before it replies to the caller. It acks the dispatch last. So if
the process dies, the dispatch is still in the DISPATCH stream, or the result is stored, or both. If both are true, the
function runs again, and the result store keeps the first result.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

import msgspec

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation_messages import (
    dead_letter_failure,
    read_dispatch,
)
from gpu_runtime.contract.messages.invocation_record import (
    HOLDS_DELIVERY,
    WORKER_GRACE,
    RecordAtRevision,
    Refusal,
    Termination,
    record_from_headers,
    termination_to_publish,
)
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.contract.messages.result import Failure, Result, ResultState
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.invocation_records.record_store import Applied, RecordUnreadable, Refused, WorkerRecords
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
)
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, is_transient
from gpu_runtime.worker_sidecar import framework_response
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry, InvocationCancelled
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_connections import ResponseSlot
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import (
    FinishInvocation,
    InvocationAttempt,
    RetryInvocation,
    ServedFunction,
    dead_letter_result,
    disposition_of,
    result_of,
    terminated,
    without_body,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

RESULT_PUBLISH_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)

FRESH_DISPATCH_MAX_AGE = timedelta(seconds=0.2)
"""Maximum age of a fresh dispatch. The sidecar assumes that a fresh dispatch has not waited for a worker."""


@dataclass(frozen=True)
class DispatchHandlerOptions:
    """Identity of the worker, and limits on attempts and results."""

    function: ServedFunction
    worker: str
    subjects: Subjects
    max_attempts: int
    backoff: Backoff
    max_body_bytes: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True)
class DispatchHandler:
    """Handles the dispatches of one function on one worker."""

    results: ResultPublisher
    records: WorkerRecords
    framework: FrameworkClient
    framework_health: FrameworkHealthMonitor
    heartbeat: HeartbeatPublisher
    cancellations: CancellationRegistry
    metrics: SidecarMetrics
    options: DispatchHandlerOptions

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        """Run the invocation of a delivery. Return whether to ack, nak or dead-letter the message."""
        if delivery.delivery_count > 1:
            self.metrics.redeliveries.labels(Stream.DISPATCH.name).inc()
        try:
            dispatch = read_dispatch(delivery.data, delivery.subject, self.options.subjects)
        except MessageDecodeError as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        if dispatch.invocation.function_id != self.options.function.function_id:
            return DeadLetterDelivery("the dispatch belongs to another function", FailureClass.BAD_MESSAGE)
        if TICKET_HEADER not in delivery.headers:  # the result store would ignore the result
            return DeadLetterDelivery("the dispatch has no ticket", FailureClass.BAD_MESSAGE)
        invocation_id = dispatch.invocation.invocation_id
        self.heartbeat.invocation_started(invocation_id)
        try:
            with self.framework.response_slot() as slot:  # until the result is published
                return await self._process(delivery, dispatch, slot)
        except RecordUnreadable as error:
            return error.to_nak()
        except JetStreamError as error:
            return NakDelivery(f"the request to NATS failed: {error}")
        finally:
            self.heartbeat.invocation_finished(invocation_id)

    async def _process(self, delivery: Delivery, dispatch: Dispatch, slot: ResponseSlot) -> DeliveryOutcome:
        now, stored = self.options.clock(), record_from_headers(delivery.headers)
        attempt = InvocationAttempt(self.options.worker, delivery.delivery_count, now)
        max_attempts = self.options.max_attempts
        try:
            async with (
                self.cancellations.cancellable(dispatch.invocation.invocation_id),
                scoped_awaitable(
                    self._call_framework(delivery, dispatch, slot), eager=is_fresh_dispatch(delivery, dispatch, now)
                ) as call,
            ):
                start = await self.records.start(dispatch, stored, now)
                stored = start.stored
                attempt = replace(attempt, attempts=stored.record.attempts)
                is_started = isinstance(start, Applied) and stored.record.termination is None
                if is_started and attempt.attempts <= max_attempts:
                    outcome = await call
        except InvocationCancelled:
            return await self._finish(delivery, dispatch, terminated(Termination.CANCELLED), attempt, stored)
        if not is_started:  # an eager call has ended here, so it cannot run after the result
            return await self._skip(delivery, dispatch, start)
        if attempt.attempts > max_attempts:  # every worker that started the invocation died
            reason = f"dead-lettered after {max_attempts} attempts; the last one ended without an outcome"
            return DeadLetterDelivery(reason, FailureClass.WORKER_LOST)
        if isinstance(outcome, framework_response.FrameworkFailed):
            await self.framework_health.check()
        match disposition_of(outcome):
            case FinishInvocation() as finish:
                return await self._finish(delivery, dispatch, finish, attempt, stored)
            case RetryInvocation(failure, delay) if attempt.attempts < max_attempts:
                return self._retry(delivery, dispatch, failure, delay)
            case RetryInvocation(failure):
                reason = f"dead-lettered after {max_attempts} attempts; last failure: {failure.message}"
                return DeadLetterDelivery(reason, failure.failure_class)

    async def _call_framework(
        self, delivery: Delivery, dispatch: Dispatch, slot: ResponseSlot
    ) -> framework_response.FrameworkOutcome:
        with self.metrics.call_duration_seconds.time():
            return await self.framework.invoke(dispatch, slot, delivery.delivery_count)

    async def _skip(self, delivery: Delivery, dispatch: Dispatch, start: Applied | Refused) -> DeliveryOutcome:
        """Do not run the invocation. If it has a termination, publish the result of the termination.

        The process that recorded the termination may have died before it published the result.
        """
        now = self.options.clock()
        if isinstance(start, Refused) and start.refusal is Refusal.RUNNING:
            remaining = (start.stored.record.deadline + WORKER_GRACE - now).total_seconds()
            return NakDelivery("the deadline passed while another worker runs the invocation", max(0.0, remaining))
        termination = termination_to_publish(start.stored.record, now, HOLDS_DELIVERY)
        if termination is not None:
            previous = InvocationAttempt(self.options.worker, start.stored.record.attempts)
            return await self._finish(delivery, dispatch, terminated(termination), previous, start.stored)
        self.metrics.invocations.labels("skipped").inc()
        return AckDelivery()

    def _retry(self, delivery: Delivery, dispatch: Dispatch, failure: Failure, delay: float | None) -> NakDelivery:
        """Nak with a delay that does not exceed the deadline, so that the invocation expires on time."""
        self.metrics.invocations.labels("retried").inc()
        delay_seconds = self.options.backoff.delay(delivery.delivery_count) if delay is None else delay
        remaining = (dispatch.deadline - self.options.clock()).total_seconds()
        return NakDelivery(failure.message, max(0.0, min(delay_seconds, remaining)))

    async def _finish(
        self,
        delivery: Delivery,
        dispatch: Dispatch,
        finish: FinishInvocation,
        attempt: InvocationAttempt,
        stored: RecordAtRevision | None,
    ) -> AckDelivery:
        result = result_of(dispatch, finish, attempt, self.options.clock(), self.options.max_body_bytes)
        # The result and then the reply go over the same connection, so the server has the result before the caller gets
        # the reply. The reply does not wait until the stream has acknowledged the result.
        ticket = delivery.headers[TICKET_HEADER]
        await asyncio.gather(
            self._publish_result(result, stored, ticket),
            self.results.reply(result, ticket, dispatch.invocation.reply_to),
        )
        self.metrics.invocations.labels(finish.state.value).inc()
        self._log_result(result)
        return AckDelivery()

    def _log_result(self, result: Result) -> None:
        """Log the result. Log a success at DEBUG, because a worker may finish hundreds of invocations per second."""
        level = logging.DEBUG if result.state is ResultState.SUCCEEDED else logging.INFO
        if logger.isEnabledFor(level):
            reason = {"reason": result.failure.message} if result.failure else {}
            extra = {
                "invocation_id": result.invocation_id,
                "function": result.serverless_request_id,
                "worker": self.options.worker,
                "state": result.state.value,
                "attempts": result.attempts,
                **reason,
            }
            logger.log(level, "invocation finished", extra=extra)

    async def _publish_result(self, result: Result, stored: RecordAtRevision | None, ticket: str) -> None:
        """Publish the result. Retry without a limit if the error is transient.

        Without the retries, the result would be lost and the function would run again. If the server rejects the
        message as too large, publish the result without its body.
        """
        failures = 0
        while True:
            try:
                await self.results.publisher.publish(self.results.message(result, stored, ticket))
            except NatsMessageTooLarge:
                if not result.body:
                    raise
                result = without_body(result)
            except JetStreamError as error:
                if not is_transient(error):
                    raise
                failures += 1
                fields = {"invocation_id": result.invocation_id, "function": result.serverless_request_id}
                logger.warning("result was not published; the sidecar will retry", extra=fields | {"error": str(error)})
                await asyncio.sleep(RESULT_PUBLISH_BACKOFF.delay(failures))
            else:
                return

    async def on_dead_letter(self, delivery: Delivery, outcome: DeadLetterDelivery) -> NakDelivery | None:
        """Publish the dead letter and the result, and reply to the caller. Return a nak if the record is unreadable.

        Publish no result if the invocation already has one, or if dead_letter_result() returns None.
        """
        options, now = self.options, self.options.clock()
        failure, attempt = dead_letter_failure(outcome), InvocationAttempt(options.worker, delivery.delivery_count)
        result = dead_letter_result(delivery.data, options.function, failure, attempt, now)
        try:
            stored = await self.records.read(result.invocation_id) if result else None
        except RecordUnreadable as error:
            return error.to_nak()
        if result and stored:  # the record also counts a start after the last attempt, which found the limit reached
            attempts = min(stored.record.attempts, options.max_attempts)
            result = msgspec.structs.replace(result, attempts=attempts)
        letters = DeadLetterBuilder(options.subjects, Stream.DISPATCH, self.results.message_ids)
        letter = letters.message(delivery, failure, now, result)
        ticket, reply_to = delivery.headers.get(TICKET_HEADER, ""), stored.record.reply_to if stored else ""
        await self.results.publish_dead_letter(letter, result if ticket else None, stored, ticket, reply_to)
        self.metrics.invocations.labels(ResultState.DEAD_LETTERED.value).inc()
        return None


def is_fresh_dispatch(delivery: Delivery, dispatch: Dispatch, now: datetime) -> bool:
    """Return whether this is the first delivery of an invocation that has not waited for a worker."""
    is_recent = abs(now - dispatch.dispatched_at) <= FRESH_DISPATCH_MAX_AGE
    return delivery.delivery_count == 1 and is_recent and now < dispatch.deadline


@asynccontextmanager
async def scoped_awaitable(coroutine: Coroutine[Any, Any, T], *, eager: bool) -> AsyncIterator[Awaitable[T]]:
    """Yield an awaitable for the coroutine, and end the coroutine when the block ends.

    If `eager` is true, the coroutine starts immediately as a task. Otherwise it starts when the block awaits it.
    """
    if not eager:
        try:
            yield coroutine
        finally:
            coroutine.close()
        return
    task = asyncio.create_task(coroutine)
    try:
        yield task
    finally:
        if not task.done():
            task.cancel()
            await asyncio.wait({task})
