"""Decides when the activator may create workers again for a function whose workers fail.

Each failure doubles the delay, up to a maximum. The delay is reset when a serving worker has sent its first event after
the last failure.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runtime.activator.autoscaler import Worker, WorkerState
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.meta import ObjectKey


@dataclass
class _FunctionBackoff:
    failures: int = 0
    last_failure_at: float = 0.0
    retry_at: float = 0.0
    failed_uids: set[str] = field(default_factory=set)
    """UIDs of the failed workers that are already counted."""


@dataclass
class WorkerBackoff:
    backoff: Backoff
    _by_function: dict[ObjectKey, _FunctionBackoff] = field(default_factory=dict)

    def observe(
        self, function: ObjectKey, workers: Sequence[Worker], liveness: WorkerLiveness, now: float
    ) -> list[Worker]:
        """Update the backoff of a function. Return the workers that failed since the last call."""
        state = self._by_function.get(function)
        counted_uids = state.failed_uids if state else set()
        failed = [worker for worker in workers if worker.state is WorkerState.UNHEALTHY and not worker.is_function_unit]
        newly_failed = [worker for worker in failed if worker.unit.metadata.uid not in counted_uids]
        if newly_failed:
            state = self._by_function.setdefault(function, _FunctionBackoff())
            state.failures, state.last_failure_at = state.failures + 1, now
            state.retry_at = now + self.backoff.delay(state.failures)
            state.failed_uids = {worker.unit.metadata.uid for worker in failed}
        elif state is not None and _served_since(state.last_failure_at, workers, liveness):
            del self._by_function[function]
        return newly_failed

    def remove(self, function: ObjectKey) -> None:
        """Reset the backoff of a deleted function. A new function with the same name starts without backoff."""
        self._by_function.pop(function, None)

    def allows_create(self, function: ObjectKey, now: float) -> bool:
        state = self._by_function.get(function)
        return state is None or now >= state.retry_at


def _served_since(since: float, workers: Sequence[Worker], liveness: WorkerLiveness) -> bool:
    statuses = (liveness.status_of(each.unit.metadata.key) for each in workers if each.state is WorkerState.SERVING)
    return any(status is not None and status.first_seen > since for status in statuses)
