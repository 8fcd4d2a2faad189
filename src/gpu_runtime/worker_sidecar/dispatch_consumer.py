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
from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation as Asked
from gpu_runtime.contract.messages.invocation_id import check_address
from gpu_runtime.contract.messages.invocation_record import Known, headers_of, known_from
from gpu_runtime.contract.messages.message_codec import Unreadable, decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing, Retry
from gpu_runtime.jetstream.errors import StreamError, TooLarge, is_passing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.worker_sidecar import framework_response
from gpu_runtime.worker_sidecar.cancellation import Aborted, Calls
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_health import FrameworkWatch
from gpu_runtime.worker_sidecar.framework_request import Invocation
from gpu_runtime.worker_sidecar.heartbeat import Presence
from gpu_runtime.worker_sidecar.mark_running import Begun, Over, begin
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import (
    Again,
    Ended,
    Run,
    buried,
    cancelled,
    expired,
    failure_of,
    result_of,
    verdict,
    without_body,
)

logger = logging.getLogger(__name__)
T = TypeVar("T")

REPLY_SECONDS = 2.0
STORING = Backoff(first=0.2, longest=5.0)
STRAIGHT = timedelta(seconds=0.2)
"""A dispatch that is not older than this did not wait for a worker."""


@dataclass(frozen=True)
class Terms:
    """How work is done here."""

    request_id: str
    worker: str
    subjects: Subjects
    attempts: int
    backoff: Backoff
    body_limit: int
    clock: Callable[[], datetime] = lambda: datetime.now(UTC)


@dataclass(frozen=True)
class Work:
    publisher: Publisher
    bucket: Bucket
    framework: FrameworkClient
    watch: FrameworkWatch
    presence: Presence
    calls: Calls
    metrics: SidecarMetrics
    terms: Terms

    async def handle(self, delivery: Delivery) -> Outcome:
        if delivery.attempt > 1:
            self.metrics.redeliveries.inc()
        try:
            dispatch = decode(delivery.data, Dispatch)
            check_address(dispatch.invocation, delivery.subject, self.terms.subjects)
        except Unreadable as error:
            return GiveUp(str(error), FailureClass.BAD_MESSAGE)
        invocation_id = dispatch.invocation.invocation_id
        self.presence.started(invocation_id)
        try:
            return await self._done(delivery, dispatch)
        except StreamError as error:
            return Retry(f"the queue did not take it: {error}")
        finally:
            self.presence.finished(invocation_id)

    async def _done(self, delivery: Delivery, dispatch: Dispatch) -> Outcome:
        now, known = self.terms.clock(), known_from(delivery.headers)
        if dispatch.deadline <= now:
            late = expired("its time was over before a worker began it")
            return await self._end(dispatch, late, Run(self.terms.worker, delivery.attempt - 1), known)
        run, invocation_id = Run(self.terms.worker, delivery.attempt, now), dispatch.invocation.invocation_id
        try:
            async with (
                self.calls.abortable(invocation_id),
                prepared(self._called(delivery, dispatch), at_once=straight(delivery, dispatch, now)) as calling,
            ):
                begun = await begin(self.bucket, invocation_id, known, self.terms.worker, now)
                if isinstance(begun, Begun):
                    known = begun.known
                    outcome = await calling
        except Aborted:
            return await self._end(dispatch, cancelled(), run, known)
        if isinstance(begun, Over):  # said when its call, which may have been under way, is over
            return await self._dropped(dispatch, begun, run)
        if isinstance(outcome, framework_response.Broken):
            await self.watch.look()
        match verdict(outcome):
            case Ended() as ended:
                return await self._end(dispatch, ended, run, known)
            case Again(failure, after) if delivery.attempt < self.terms.attempts:
                return self._again(delivery, dispatch, failure, after)
            case Again(failure):
                return await self._buried(delivery, dispatch, failure)

    async def _called(self, delivery: Delivery, dispatch: Dispatch) -> framework_response.Outcome:
        with self.metrics.call_seconds.time():
            return await self.framework.invoke(call_of(dispatch, delivery.attempt))

    async def _dropped(self, dispatch: Dispatch, over: Over, run: Run) -> Done:
        """It has its end already. Only of one that was taken back this may not have been said."""
        if over.cancelled:
            return await self._end(dispatch, cancelled(), replace(run, started_at=None), over.known)
        self.metrics.invocations.labels("dropped").inc()
        return Done()

    def _again(self, delivery: Delivery, dispatch: Dispatch, failure: Failure, after: float | None) -> Retry:
        self.metrics.invocations.labels("retried").inc()
        wait = self.terms.backoff.delay(delivery.attempt) if after is None else after
        left = (dispatch.deadline - self.terms.clock()).total_seconds()
        return Retry(failure.message, max(0.0, min(wait, left)))  # to be told in time that its time is over

    async def _buried(self, delivery: Delivery, dispatch: Dispatch, failure: Failure) -> Done:
        """Its tries are used up. The queue's own way to give up would keep the same, but could tell nobody."""
        reason = f"given up after {delivery.attempt} tries; the last one: {failure.message}"
        logger.warning("given up", extra={"invocationID": dispatch.invocation.invocation_id, "reason": reason})
        letter, result = self.abandoned(delivery, GiveUp(reason, failure.failure_class))
        await self.publisher.publish(letter)
        await self.publisher.publish(result)
        await self._reply(dispatch.invocation, result.data)
        return Done()

    async def _end(self, dispatch: Dispatch, ended: Ended, run: Run, known: Known | None) -> Done:
        result = result_of(dispatch, ended, run, self.terms.clock(), self.terms.body_limit)
        message = self._outgoing(result, known)
        # In this order on one connection: who hears of the result hears of one that the server has. A caller need not
        # wait for the acknowledgement, too.
        await asyncio.gather(self._store(message, result, known), self._reply(dispatch.invocation, message.data))
        self.metrics.invocations.labels(ended.state.value).inc()
        self._note(result)
        return Done()

    def _note(self, result: Result) -> None:
        """What ended well is told to those who look closely: there may be hundreds a second."""
        level = logging.DEBUG if result.state is ResultState.SUCCEEDED else logging.INFO
        if logger.isEnabledFor(level):
            why = {"reason": result.failure.message} if result.failure else {}
            extra = {
                "invocationID": result.invocation_id,
                "unit": self.terms.worker,
                "attempts": result.attempts,
                **why,
            }
            logger.log(level, "%s", result.state.value, extra=extra)

    async def _store(self, message: Outgoing, result: Result, known: Known | None) -> None:
        """Have the result stored, however long that takes: without it, the function would have to run again."""
        failures = 0
        while True:
            try:
                await self.publisher.publish(message)
            except TooLarge:
                if not result.body:
                    raise
                result = without_body(result)
                message = self._outgoing(result, known)
            except StreamError as error:
                if not is_passing(error):
                    raise
                failures += 1
                logger.warning("a result waits", extra={"invocationID": result.invocation_id, "error": str(error)})
                await asyncio.sleep(STORING.delay(failures))
            else:
                return

    def _outgoing(self, result: Result, known: Known | None) -> Outgoing:
        headers = headers_of(known) if known else {}
        subject = self.terms.subjects.result(result.serverless_request_id)
        return Outgoing(subject, encode(result), result.message_id, headers)

    async def _reply(self, asked: Asked, data: bytes) -> None:
        """Tell whoever waits. What gets lost is looked up."""
        if not asked.reply_to:
            return
        try:
            await self.publisher.connection.publish(asked.reply_to, data, within=REPLY_SECONDS)
        except StreamError as error:
            logger.warning("a reply was lost", extra={"invocationID": asked.invocation_id, "error": str(error)})

    def abandoned(self, delivery: Delivery, given_up: GiveUp) -> Sequence[Outgoing]:
        """The dead letter, and the result where there is somebody whose it is."""
        self.metrics.invocations.labels(ResultState.DEAD_LETTERED.value).inc()
        letters, now = DeadLetters(self.terms.subjects, Queue.DISPATCH), self.terms.clock()
        failure = failure_of(delivery, given_up, self.terms.attempts)
        run = Run(self.terms.worker, min(delivery.attempt, self.terms.attempts))
        result = buried(delivery.data, self.terms.request_id, failure, run, now)
        letter = letters.letter(delivery, failure, now, result.invocation_id if result else "")
        return [letters.outgoing(letter), *([self._outgoing(result, None)] if result else [])]


def straight(delivery: Delivery, dispatch: Dispatch, now: datetime) -> bool:
    """Whether the invocation comes from its caller without having waited or been tried."""
    return delivery.attempt == 1 and abs(now - dispatch.dispatched_at) <= STRAIGHT


@asynccontextmanager
async def prepared(work: Coroutine[Any, Any, T], *, at_once: bool) -> AsyncIterator[Awaitable[T]]:
    """Work to be awaited within the block, and under way already if that is wanted. What is not done then ends."""
    if not at_once:
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


def call_of(dispatch: Dispatch, attempt: int) -> Invocation:
    """The invocation as the framework gets it."""
    asked = dispatch.invocation
    return Invocation(
        invocation_id=asked.invocation_id,
        body=asked.body,
        content_type=asked.content_type,
        headers=asked.headers,
        attributes=asked.attributes,
        deadline=dispatch.deadline,
        attempt=attempt,
    )
