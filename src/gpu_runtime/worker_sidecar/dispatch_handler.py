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
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import check_subject
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, record_from_headers, record_headers
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
    OutgoingMessage,
)
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, is_transient
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.worker_sidecar import framework_response
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry, InvocationCancelled
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.framework_request import FrameworkRequest
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.mark_running import MarkedRunning, NotRunnable, mark_running
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import (
    FinishInvocation,
    InvocationAttempt,
    RetryInvocation,
    cancelled,
    dead_letter_failure,
    dead_letter_result,
    disposition_of,
    expired,
    result_of,
    without_body,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

REPLY_TIMEOUT_SECONDS = 2.0
"""Time limit for sending the reply to a caller that waits for the result."""

RESULT_PUBLISH_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)

FRESH_DISPATCH_MAX_AGE = timedelta(seconds=0.2)
"""Maximum age of a fresh dispatch. The sidecar assumes that a fresh dispatch has not waited for a worker."""


@dataclass(frozen=True)
class DispatchHandlerOptions:
    """Identity of the worker, and limits on deliveries and results."""

    request_id: str
    worker: str
    subjects: Subjects
    max_deliveries: int
    backoff: Backoff
    max_body_bytes: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True)
class DispatchHandler:
    """Handles the dispatches of one function on one worker."""

    publisher: Publisher
    bucket: KeyValueBucket
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
            dispatch = decode(delivery.data, Dispatch)
            check_subject(dispatch.invocation, delivery.subject, self.options.subjects)
        except MessageDecodeError as error:
            return DeadLetterDelivery(str(error), FailureClass.BAD_MESSAGE)
        invocation_id = dispatch.invocation.invocation_id
        self.heartbeat.invocation_started(invocation_id)
        try:
            return await self._process(delivery, dispatch)
        except JetStreamError as error:
            return NakDelivery(f"the request to NATS failed: {error}")
        finally:
            self.heartbeat.invocation_finished(invocation_id)

    async def _process(self, delivery: Delivery, dispatch: Dispatch) -> DeliveryOutcome:
        now, stored = self.options.clock(), record_from_headers(delivery.headers)
        if dispatch.deadline <= now:
            late = expired("the deadline passed before a worker started the invocation")
            previous = InvocationAttempt(self.options.worker, delivery.delivery_count - 1)
            return await self._finish(dispatch, late, previous, stored)
        attempt = InvocationAttempt(self.options.worker, delivery.delivery_count, now)
        invocation_id = dispatch.invocation.invocation_id
        try:
            async with (
                self.cancellations.cancellable(invocation_id),
                scoped_awaitable(
                    self._call_framework(delivery, dispatch), eager=is_fresh_dispatch(delivery, dispatch, now)
                ) as call,
            ):
                start = await mark_running(self.bucket, invocation_id, stored, self.options.worker, now)
                if isinstance(start, MarkedRunning):
                    stored = start.stored
                    outcome = await call
        except InvocationCancelled:
            return await self._finish(dispatch, cancelled(), attempt, stored)
        if isinstance(start, NotRunnable):  # an eager call has ended here, so it cannot run after the result
            return await self._skip(dispatch, start, attempt)
        if isinstance(outcome, framework_response.FrameworkFailed):
            await self.framework_health.check()
        match disposition_of(outcome):
            case FinishInvocation() as finish:
                return await self._finish(dispatch, finish, attempt, stored)
            case RetryInvocation(failure, delay) if delivery.delivery_count < self.options.max_deliveries:
                return self._retry(delivery, dispatch, failure, delay)
            case RetryInvocation(failure):
                return await self._dead_letter(delivery, dispatch, failure)

    async def _call_framework(self, delivery: Delivery, dispatch: Dispatch) -> framework_response.FrameworkOutcome:
        with self.metrics.call_duration_seconds.time():
            return await self.framework.invoke(framework_request_of(dispatch, delivery.delivery_count))

    async def _skip(self, dispatch: Dispatch, start: NotRunnable, attempt: InvocationAttempt) -> AckDelivery:
        """Ack an invocation that must not run. If it is cancelled and has no result yet, publish its result first."""
        if start.cancelled:
            return await self._finish(dispatch, cancelled(), replace(attempt, started_at=None), start.stored)
        self.metrics.invocations.labels("skipped").inc()
        return AckDelivery()

    def _retry(self, delivery: Delivery, dispatch: Dispatch, failure: Failure, delay: float | None) -> NakDelivery:
        """Nak with a delay that does not exceed the deadline, so that the invocation expires on time."""
        self.metrics.invocations.labels("retried").inc()
        delay_seconds = self.options.backoff.delay(delivery.delivery_count) if delay is None else delay
        remaining = (dispatch.deadline - self.options.clock()).total_seconds()
        return NakDelivery(failure.message, max(0.0, min(delay_seconds, remaining)))

    async def _dead_letter(self, delivery: Delivery, dispatch: Dispatch, failure: Failure) -> AckDelivery:
        """Publish the dead letter and the result of an invocation whose last delivery failed, and reply to the caller.

        If this method returned a DeadLetterDelivery, the pull consumer would publish the same messages. But the pull
        consumer cannot reply to the caller.
        """
        reason = f"dead-lettered after {delivery.delivery_count} deliveries; last failure: {failure.message}"
        letter, result = self.dead_letter_messages(delivery, DeadLetterDelivery(reason, failure.failure_class))
        await self.publisher.publish(letter)
        await self.publisher.publish(result)
        logger.warning(
            "invocation dead-lettered",
            extra={
                "invocation_id": dispatch.invocation.invocation_id,
                "function": dispatch.invocation.serverless_request_id,
                "worker": self.options.worker,
                "delivery_count": delivery.delivery_count,
                "failure_class": failure.failure_class.value,
                "reason": reason,
            },
        )
        await self._reply(dispatch.invocation, result.data)
        return AckDelivery()

    async def _finish(
        self, dispatch: Dispatch, finish: FinishInvocation, attempt: InvocationAttempt, stored: RecordAtRevision | None
    ) -> AckDelivery:
        result = result_of(dispatch, finish, attempt, self.options.clock(), self.options.max_body_bytes)
        message = self._result_message(result, stored)
        # The result and then the reply go over the same connection, so the server has the result before the caller gets
        # the reply. The reply does not wait until the stream has acknowledged the result.
        await asyncio.gather(
            self._publish_result(message, result, stored), self._reply(dispatch.invocation, message.data)
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

    async def _publish_result(self, message: OutgoingMessage, result: Result, stored: RecordAtRevision | None) -> None:
        """Publish the result. Retry without a limit if the error is transient.

        Without the retries, the result would be lost and the function would run again. If the server rejects the
        message as too large, publish the result without its body.
        """
        failures = 0
        while True:
            try:
                await self.publisher.publish(message)
            except NatsMessageTooLarge:
                if not result.body:
                    raise
                result = without_body(result)
                message = self._result_message(result, stored)
            except JetStreamError as error:
                if not is_transient(error):
                    raise
                failures += 1
                logger.warning("result not published: retrying", extra=_error_fields(result, error))
                await asyncio.sleep(RESULT_PUBLISH_BACKOFF.delay(failures))
            else:
                return

    def _result_message(self, result: Result, stored: RecordAtRevision | None) -> OutgoingMessage:
        headers = record_headers(stored) if stored else {}
        subject = self.options.subjects.result(result.serverless_request_id)
        return OutgoingMessage(subject, encode(result), result.message_id, headers)

    async def _reply(self, invocation: Invocation, data: bytes) -> None:
        """Send the result to the caller if the caller waits for a reply.

        If the reply is lost, the caller queries the stored result.
        """
        if not invocation.reply_to:
            return
        try:
            await self.publisher.connection.publish(invocation.reply_to, data, timeout_seconds=REPLY_TIMEOUT_SECONDS)
        except JetStreamError as error:
            logger.warning(
                "reply not sent: the runtime API will read the stored result",
                extra=_error_fields(invocation, error),
            )

    def dead_letter_messages(self, delivery: Delivery, outcome: DeadLetterDelivery) -> Sequence[OutgoingMessage]:
        """Build the dead letter. Also build the result, unless dead_letter_result() returns None."""
        self.metrics.invocations.labels(ResultState.DEAD_LETTERED.value).inc()
        letters, now = DeadLetterBuilder(self.options.subjects, Stream.DISPATCH), self.options.clock()
        failure = dead_letter_failure(delivery, outcome, self.options.max_deliveries)
        attempt = InvocationAttempt(self.options.worker, min(delivery.delivery_count, self.options.max_deliveries))
        result = dead_letter_result(delivery.data, self.options.request_id, failure, attempt, now)
        letter = letters.build(delivery, failure, now, result.invocation_id if result else "")
        return [letters.to_outgoing(letter), *([self._result_message(result, None)] if result else [])]


def is_fresh_dispatch(delivery: Delivery, dispatch: Dispatch, now: datetime) -> bool:
    """Return whether this is the first delivery of an invocation that has not waited for a worker."""
    return delivery.delivery_count == 1 and abs(now - dispatch.dispatched_at) <= FRESH_DISPATCH_MAX_AGE


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


def framework_request_of(dispatch: Dispatch, attempt: int) -> FrameworkRequest:
    """Build the request to the framework from a dispatch."""
    invocation = dispatch.invocation
    return FrameworkRequest(
        invocation_id=invocation.invocation_id,
        body=invocation.body,
        content_type=invocation.content_type,
        headers=invocation.headers,
        attributes=invocation.attributes,
        deadline=dispatch.deadline,
        attempt=attempt,
    )


def _error_fields(about: Invocation | Result, error: JetStreamError) -> dict[str, str]:
    """Return the log fields of a message of this invocation that was not sent."""
    return {"invocation_id": about.invocation_id, "function": about.serverless_request_id, "error": str(error)}
