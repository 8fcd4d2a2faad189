"""Ends invocations without a worker: records the termination, then publishes the result.

The activator ends an invocation if its deadline passed, if the caller cancelled it, or if its function was deleted.
"""

import logging
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.contract.messages.invocation_record import RecordAtRevision
from gpu_runtime.invocation_records.result_publisher import ResultPublisher, TerminationPublisher

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TerminalResultPublisher:
    """Publishes results of invocations that end in one stage: before the dispatch, or after it."""

    terminations: TerminationPublisher
    metrics: ActivatorMetrics
    stage: TerminationStage
    """Value of the label `stage` of the metric gpu_runtime_invocations_terminated_total."""

    @property
    def results(self) -> ResultPublisher:
        return self.terminations.results

    async def publish_termination(
        self, invocation_id: str, stored: RecordAtRevision, now: datetime, worker_grace: timedelta
    ) -> bool:
        """Publish the result of the termination in the record. Return False if this process must not publish it."""
        published = await self.terminations.publish_termination(invocation_id, stored, now, worker_grace)
        if published is None:
            return False
        result = published.result
        failure_class = result.failure.failure_class.value if result.failure else ""
        if published.is_new:  # count only once: a redelivery publishes the result again with the same message ID
            self.metrics.terminated.labels(result.state.value, failure_class, self.stage.value).inc()
        logger.info(
            "activator terminated the invocation",
            extra={
                "invocation_id": result.invocation_id,
                "function": result.serverless_request_id,
                "state": result.state.value,
                "failure_class": failure_class,
                "reason": result.failure.message if result.failure else "",
            },
        )
        return True
