"""Results of invocations that no worker ends: too late, taken back, or of a function that is gone."""

import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import Known, headers_of
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, unsuccessful
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.publisher import Publisher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Ending:
    state: ResultState
    failure: Failure


def timed_out() -> Ending:
    text = "no worker had it before its time was over"
    return Ending(ResultState.EXPIRED, Failure(failure_class=FailureClass.TIMED_OUT, message=text))


def gone() -> Ending:
    text = "the function was deleted, or takes no invocations any more"
    return Ending(ResultState.FAILED, Failure(failure_class=FailureClass.FUNCTION_GONE, message=text))


def taken_back() -> Ending:
    text = "the caller took it back before any worker had it"
    return Ending(ResultState.CANCELLED, Failure(failure_class=FailureClass.CANCELLED, message=text))


@dataclass(frozen=True)
class Endings:
    subjects: Subjects
    publisher: Publisher
    metrics: ActivatorMetrics

    async def end(self, invocation: Invocation, ending: Ending, now: datetime, known: Known | None) -> None:
        """Have the result stored, and tell a caller that waits for it."""
        result = unsuccessful(invocation, ending.state, ending.failure, now)
        await self.publisher.publish(self.outgoing(result, known))
        self.metrics.ended.labels(ending.state.value, ending.failure.failure_class.value).inc()
        about = {"invocationID": invocation.invocation_id, "function": invocation.serverless_request_id}
        logger.info("%s: %s", ending.state.value, ending.failure.message, extra=about)
        if invocation.reply_to:
            with contextlib.suppress(StreamError):  # it can still be fetched
                await self.publisher.connection.publish(invocation.reply_to, encode(result))

    def outgoing(self, result: Result, known: Known | None) -> Outgoing:
        headers = headers_of(known) if known else {}
        return Outgoing(self.subjects.result(result.serverless_request_id), encode(result), result.message_id, headers)
