"""Results of invocations that no worker ends: too late, taken back, or of a function that is gone."""

import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, record_headers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, unsuccessful_result
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import Publisher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TerminalOutcome:
    state: ResultState
    failure: Failure


def expired_outcome() -> TerminalOutcome:
    text = "no worker had it before its time was over"
    return TerminalOutcome(ResultState.EXPIRED, Failure(failure_class=FailureClass.TIMED_OUT, message=text))


def function_deleted_outcome() -> TerminalOutcome:
    text = "the function was deleted, or takes no invocations any more"
    return TerminalOutcome(ResultState.FAILED, Failure(failure_class=FailureClass.FUNCTION_GONE, message=text))


def cancelled_outcome() -> TerminalOutcome:
    text = "the caller took it back before any worker had it"
    return TerminalOutcome(ResultState.CANCELLED, Failure(failure_class=FailureClass.CANCELLED, message=text))


@dataclass(frozen=True)
class TerminalResultPublisher:
    subjects: Subjects
    publisher: Publisher
    metrics: ActivatorMetrics

    async def publish(
        self, invocation: Invocation, ending: TerminalOutcome, now: datetime, known: RecordAtRevision | None
    ) -> None:
        """Have the result stored, and tell a caller that waits for it."""
        result = unsuccessful_result(invocation, ending.state, ending.failure, now)
        await self.publisher.publish(self.outgoing(result, known))
        self.metrics.terminated.labels(ending.state.value, ending.failure.failure_class.value).inc()
        about = {"invocationID": invocation.invocation_id, "function": invocation.serverless_request_id}
        logger.info("%s: %s", ending.state.value, ending.failure.message, extra=about)
        if invocation.reply_to:
            with contextlib.suppress(JetStreamError):  # it can still be fetched
                await self.publisher.connection.publish(invocation.reply_to, encode(result))

    def outgoing(self, result: Result, known: RecordAtRevision | None) -> OutgoingMessage:
        headers = record_headers(known) if known else {}
        return OutgoingMessage(
            self.subjects.result(result.serverless_request_id), encode(result), result.message_id, headers
        )
