"""From a delivery of the queue to its end: the record, the call, the result.

The record becomes `running` under the condition that nobody took the invocation back. Of one that waited, that is known
before its function is called. One that comes straight from its caller is called at the same time: whoever takes it back
in these milliseconds could as well have done so a moment later, and the call is broken off.

A result is sent to be stored before anybody is told of it, and the dispatch goes last: whenever the process dies, the
invocation is either still in the queue or has its result. Where both are the case, it is run again and the first result
stands.
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
from gpu_runtime.contract.messages.invocation import Invocation as Asked
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
RESULT_PUBLISH_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)
FRESH_DISPATCH_MAX_AGE = timedelta(seconds=0.2)
"""A dispatch that is not older than this did not wait for a worker."""


@dataclass(frozen=True)
class DispatchConsumerOptions:
    """How work is done here."""

    request_id: str
    worker: str
    subjects: Subjects
    max_deliveries: int
    backoff: Backoff
    max_body_bytes: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True)
class DispatchConsumer:
    publisher: Publisher
    bucket: KeyValueBucket
    framework: FrameworkClient
    framework_health: FrameworkHealthMonitor
    heartbeat: HeartbeatPublisher
    cancellations: CancellationRegistry
    metrics: SidecarMetrics
    options: DispatchConsumerOptions

    async def handle(self, delivery: Delivery) -> DeliveryOutcome:
        if delivery.delivery_count > 1:
            self.metrics.redeliveries.inc()
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
            return NakDelivery(f"the queue did not take it: {error}")
        finally:
            self.heartbeat.invocation_finished(invocation_id)

    async def _process(self, delivery: Delivery, dispatch: Dispatch) -> DeliveryOutcome:
        now, known = self.options.clock(), record_from_headers(delivery.headers)
        if dispatch.deadline <= now:
            late = expired("its time was over before a worker began it")
            return await self._finish(
                dispatch, late, InvocationAttempt(self.options.worker, delivery.delivery_count - 1), known
            )
        run, invocation_id = (
            InvocationAttempt(self.options.worker, delivery.delivery_count, now),
            dispatch.invocation.invocation_id,
        )
        try:
            async with (
                self.cancellations.cancellable(invocation_id),
                scoped_awaitable(
                    self._call_framework(delivery, dispatch), eager=is_fresh_dispatch(delivery, dispatch, now)
                ) as calling,
            ):
                begun = await mark_running(self.bucket, invocation_id, known, self.options.worker, now)
                if isinstance(begun, MarkedRunning):
                    known = begun.stored
                    outcome = await calling
        except InvocationCancelled:
            return await self._finish(dispatch, cancelled(), run, known)
        if isinstance(begun, NotRunnable):  # said when its call, which may have been under way, is over
            return await self._skip(dispatch, begun, run)
        if isinstance(outcome, framework_response.FrameworkFailed):
            await self.framework_health.check()
        match disposition_of(outcome):
            case FinishInvocation() as ended:
                return await self._finish(dispatch, ended, run, known)
            case RetryInvocation(failure, after) if delivery.delivery_count < self.options.max_deliveries:
                return self._retry(delivery, dispatch, failure, after)
            case RetryInvocation(failure):
                return await self._dead_letter(delivery, dispatch, failure)

    async def _call_framework(self, delivery: Delivery, dispatch: Dispatch) -> framework_response.FrameworkOutcome:
        with self.metrics.call_duration_seconds.time():
            return await self.framework.invoke(framework_request_of(dispatch, delivery.delivery_count))

    async def _skip(self, dispatch: Dispatch, over: NotRunnable, run: InvocationAttempt) -> AckDelivery:
        """It has its end already. Only of one that was taken back this may not have been said."""
        if over.cancelled:
            return await self._finish(dispatch, cancelled(), replace(run, started_at=None), over.stored)
        self.metrics.invocations.labels("dropped").inc()
        return AckDelivery()

    def _retry(self, delivery: Delivery, dispatch: Dispatch, failure: Failure, after: float | None) -> NakDelivery:
        self.metrics.invocations.labels("retried").inc()
        wait = self.options.backoff.delay(delivery.delivery_count) if after is None else after
        left = (dispatch.deadline - self.options.clock()).total_seconds()
        return NakDelivery(failure.message, max(0.0, min(wait, left)))  # to be told in time that its time is over

    async def _dead_letter(self, delivery: Delivery, dispatch: Dispatch, failure: Failure) -> AckDelivery:
        """Its tries are used up. The queue's own way to give up would keep the same, but could tell nobody."""
        reason = f"given up after {delivery.delivery_count} tries; the last one: {failure.message}"
        logger.warning("given up", extra={"invocationID": dispatch.invocation.invocation_id, "reason": reason})
        letter, result = self.dead_letter_messages(delivery, DeadLetterDelivery(reason, failure.failure_class))
        await self.publisher.publish(letter)
        await self.publisher.publish(result)
        await self._reply(dispatch.invocation, result.data)
        return AckDelivery()

    async def _finish(
        self, dispatch: Dispatch, ended: FinishInvocation, run: InvocationAttempt, known: RecordAtRevision | None
    ) -> AckDelivery:
        result = result_of(dispatch, ended, run, self.options.clock(), self.options.max_body_bytes)
        message = self._result_message(result, known)
        # In this order on one connection: who hears of the result hears of one that the server has. A caller need not
        # wait for the acknowledgement, too.
        await asyncio.gather(
            self._publish_result(message, result, known), self._reply(dispatch.invocation, message.data)
        )
        self.metrics.invocations.labels(ended.state.value).inc()
        self._log_result(result)
        return AckDelivery()

    def _log_result(self, result: Result) -> None:
        """What ended well is told to those who look closely: there may be hundreds a second."""
        level = logging.DEBUG if result.state is ResultState.SUCCEEDED else logging.INFO
        if logger.isEnabledFor(level):
            why = {"reason": result.failure.message} if result.failure else {}
            extra = {
                "invocationID": result.invocation_id,
                "unit": self.options.worker,
                "attempts": result.attempts,
                **why,
            }
            logger.log(level, "%s", result.state.value, extra=extra)

    async def _publish_result(self, message: OutgoingMessage, result: Result, known: RecordAtRevision | None) -> None:
        """Have the result stored, however long that takes: without it, the function would have to run again."""
        failures = 0
        while True:
            try:
                await self.publisher.publish(message)
            except NatsMessageTooLarge:
                if not result.body:
                    raise
                result = without_body(result)
                message = self._result_message(result, known)
            except JetStreamError as error:
                if not is_transient(error):
                    raise
                failures += 1
                logger.warning("a result waits", extra={"invocationID": result.invocation_id, "error": str(error)})
                await asyncio.sleep(RESULT_PUBLISH_BACKOFF.delay(failures))
            else:
                return

    def _result_message(self, result: Result, known: RecordAtRevision | None) -> OutgoingMessage:
        headers = record_headers(known) if known else {}
        subject = self.options.subjects.result(result.serverless_request_id)
        return OutgoingMessage(subject, encode(result), result.message_id, headers)

    async def _reply(self, asked: Asked, data: bytes) -> None:
        """Tell whoever waits. What gets lost is looked up."""
        if not asked.reply_to:
            return
        try:
            await self.publisher.connection.publish(asked.reply_to, data, timeout_seconds=REPLY_TIMEOUT_SECONDS)
        except JetStreamError as error:
            logger.warning("a reply was lost", extra={"invocationID": asked.invocation_id, "error": str(error)})

    def dead_letter_messages(self, delivery: Delivery, given_up: DeadLetterDelivery) -> Sequence[OutgoingMessage]:
        """The dead letter, and the result where there is somebody whose it is."""
        self.metrics.invocations.labels(ResultState.DEAD_LETTERED.value).inc()
        letters, now = DeadLetterBuilder(self.options.subjects, Stream.DISPATCH), self.options.clock()
        failure = dead_letter_failure(delivery, given_up, self.options.max_deliveries)
        run = InvocationAttempt(self.options.worker, min(delivery.delivery_count, self.options.max_deliveries))
        result = dead_letter_result(delivery.data, self.options.request_id, failure, run, now)
        letter = letters.build(delivery, failure, now, result.invocation_id if result else "")
        return [letters.to_outgoing(letter), *([self._result_message(result, None)] if result else [])]


def is_fresh_dispatch(delivery: Delivery, dispatch: Dispatch, now: datetime) -> bool:
    """Whether the invocation comes from its caller without having waited or been tried."""
    return delivery.delivery_count == 1 and abs(now - dispatch.dispatched_at) <= FRESH_DISPATCH_MAX_AGE


@asynccontextmanager
async def scoped_awaitable(work: Coroutine[Any, Any, T], *, eager: bool) -> AsyncIterator[Awaitable[T]]:
    """Work to be awaited within the block, and under way already if that is wanted. What is not done then ends."""
    if not eager:
        try:
            yield work
        finally:
            work.close()
        return
    under_way = asyncio.create_task(work)
    try:
        yield under_way
    finally:
        if not under_way.done():
            under_way.cancel()
            await asyncio.wait({under_way})


def framework_request_of(dispatch: Dispatch, attempt: int) -> FrameworkRequest:
    """The invocation as the framework gets it."""
    asked = dispatch.invocation
    return FrameworkRequest(
        invocation_id=asked.invocation_id,
        body=asked.body,
        content_type=asked.content_type,
        headers=asked.headers,
        attributes=asked.attributes,
        deadline=dispatch.deadline,
        attempt=attempt,
    )
