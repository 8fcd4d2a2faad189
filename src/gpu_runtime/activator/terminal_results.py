"""Publishes the results of invocations that the activator ends without a worker.

The activator ends an invocation if its deadline passed, if the caller cancelled it, or if its function was deleted.
"""

import contextlib
import logging
from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
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
    message = "the deadline passed before a worker started the invocation"
    return TerminalOutcome(ResultState.EXPIRED, Failure(failure_class=FailureClass.TIMED_OUT, message=message))


def function_deleted_outcome() -> TerminalOutcome:
    message = "the function was deleted or is disabled"
    return TerminalOutcome(ResultState.FAILED, Failure(failure_class=FailureClass.FUNCTION_GONE, message=message))


def cancelled_outcome() -> TerminalOutcome:
    message = "the caller cancelled the invocation before a worker started it"
    return TerminalOutcome(ResultState.CANCELLED, Failure(failure_class=FailureClass.CANCELLED, message=message))


@dataclass(frozen=True)
class TerminalResultPublisher:
    """Publishes results of invocations that end in one stage: before the dispatch, or after it."""

    subjects: Subjects
    publisher: Publisher
    metrics: ActivatorMetrics
    stage: TerminationStage
    """Value of the label `stage` of the metric gpu_runtime_invocations_terminated_total."""

    async def publish(
        self, invocation: Invocation, outcome: TerminalOutcome, now: datetime, record: RecordAtRevision | None
    ) -> None:
        """Publish the result to the RESULT stream. Also send it to the caller if the caller waits for a reply."""
        result = unsuccessful_result(invocation, outcome.state, outcome.failure, now)
        ack = await self.publisher.publish(self.outgoing(result, record))
        if not ack.duplicate:  # count only once: a redelivery publishes the result again with the same message ID
            self._count_termination(outcome)
        logger.info(
            "invocation terminated without a worker",
            extra={
                "invocation_id": invocation.invocation_id,
                "function": invocation.serverless_request_id,
                "state": outcome.state.value,
                "failure_class": outcome.failure.failure_class.value,
                "reason": outcome.failure.message,
            },
        )
        if invocation.reply_to:
            with contextlib.suppress(JetStreamError):  # the caller can still fetch the stored result
                await self.publisher.connection.publish(invocation.reply_to, encode(result))

    def outgoing(self, result: Result, record: RecordAtRevision | None) -> OutgoingMessage:
        headers = record_headers(record) if record else {}
        return OutgoingMessage(
            self.subjects.result(result.serverless_request_id), encode(result), result.message_id, headers
        )

    def _count_termination(self, outcome: TerminalOutcome) -> None:
        labels = (outcome.state.value, outcome.failure.failure_class.value, self.stage.value)
        self.metrics.terminated.labels(*labels).inc()
