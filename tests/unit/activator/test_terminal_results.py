"""The activator counts every invocation that it ends exactly once, with its stage."""

from datetime import UTC, datetime
from typing import Any, cast

import pytest

from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.terminal_results import (
    TerminalOutcome,
    TerminalResultPublisher,
    cancelled_outcome,
    expired_outcome,
    function_deleted_outcome,
)
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import PubAck

NOW = datetime(2026, 1, 1, tzinfo=UTC)


class DeduplicatingPublisher:
    """Acknowledges a message like JetStream: the second message with the same ID is a duplicate."""

    def __init__(self) -> None:
        self.message_ids: set[str] = set()

    async def publish(self, message: OutgoingMessage) -> PubAck:
        duplicate = message.message_id in self.message_ids
        self.message_ids.add(message.message_id)
        return PubAck("RESULT", 1, duplicate)


def terminated(metrics: ActivatorMetrics) -> dict[tuple[str, str, str], float]:
    (family,) = metrics.terminated.collect()
    return {
        (each.labels["state"], each.labels["failure_class"], each.labels["stage"]): each.value
        for each in family.samples
        if each.name == "gpu_runtime_invocations_terminated_total"
    }


@pytest.mark.parametrize(
    ("outcome", "stage", "labels"),
    [
        (expired_outcome(), TerminationStage.QUEUED, ("expired", "timed_out", "queued")),
        (expired_outcome(), TerminationStage.DISPATCHED, ("expired", "timed_out", "dispatched")),
        (cancelled_outcome(), TerminationStage.DISPATCHED, ("cancelled", "cancelled", "dispatched")),
        (function_deleted_outcome(), TerminationStage.QUEUED, ("failed", "function_gone", "queued")),
    ],
)
async def test_invocation_that_is_terminated_twice_is_counted_once(
    outcome: TerminalOutcome, stage: TerminationStage, labels: tuple[str, str, str]
) -> None:
    metrics = ActivatorMetrics()
    results = TerminalResultPublisher(Subjects(), cast(Any, DeduplicatingPublisher()), metrics, stage)
    invocation = Invocation(invocation_id="one", serverless_request_id="f", timeout_seconds=60)
    for _delivery in range(2):
        await results.publish(invocation, outcome, NOW, None)
    assert terminated(metrics) == {labels: 1}
