"""The activator counts every invocation that it ends exactly once, with its stage."""

from datetime import UTC, datetime
from typing import Any

import pytest

from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.invocation_record import NO_TAKEOVER, InvocationRecord, RecordAtRevision, Termination
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import PubAck
from tests.ticket_keys import TICKETS

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
    ("termination", "stage", "labels"),
    [
        (Termination.EXPIRED, TerminationStage.QUEUED, ("expired", "timed_out", "queued")),
        (Termination.EXPIRED, TerminationStage.DISPATCHED, ("expired", "timed_out", "dispatched")),
        (Termination.CANCELLED, TerminationStage.DISPATCHED, ("cancelled", "cancelled", "dispatched")),
        (Termination.FUNCTION_GONE, TerminationStage.QUEUED, ("failed", "function_gone", "queued")),
    ],
)
async def test_invocation_that_is_terminated_twice_is_counted_once(
    termination: Termination, stage: TerminationStage, labels: tuple[str, str, str]
) -> None:
    metrics = ActivatorMetrics()
    publisher: Any = DeduplicatingPublisher()
    results = TerminalResultPublisher(new_termination_publisher(Subjects(), publisher, TICKETS), metrics, stage)
    record = InvocationRecord(
        request_hash="h",
        serverless_request_id="f",
        function_id="f",
        enqueued_at=NOW,
        deadline=NOW,
        updated_at=NOW,
        termination=termination,
    )
    for _delivery in range(2):
        assert await results.publish_termination("one", RecordAtRevision(record, 1), NOW, NO_TAKEOVER)
    assert terminated(metrics) == {labels: 1}
