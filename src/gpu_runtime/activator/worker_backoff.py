"""Functions whose workers fail: no more are made for a while, each time longer, until one of them has served."""

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
    """The UIDs of the workers that failed."""


@dataclass
class WorkerBackoff:
    backoff: Backoff
    _by_function: dict[ObjectKey, _FunctionBackoff] = field(default_factory=dict)

    def observe(self, function: ObjectKey, seen: Sequence[Worker], workers: WorkerLiveness, now: float) -> list[Worker]:
        """Take note of what the function's workers have come to. Gives those that have failed since the last time."""
        known = self._by_function.get(function)
        counted = known.failed_uids if known else set()
        broken = [worker for worker in seen if worker.state is WorkerState.UNHEALTHY and not worker.is_function_unit]
        new = [worker for worker in broken if worker.unit.metadata.uid not in counted]
        if new:
            known = self._by_function.setdefault(function, _FunctionBackoff())
            known.failures, known.last_failure_at = known.failures + 1, now
            known.retry_at = now + self.backoff.delay(known.failures)
            known.failed_uids = {worker.unit.metadata.uid for worker in broken}
        elif known is not None and _served_since(known.last_failure_at, seen, workers):
            del self._by_function[function]
        return new

    def remove(self, function: ObjectKey) -> None:
        """The function is gone: one that comes under its name may be a better one."""
        self._by_function.pop(function, None)

    def allows_create(self, function: ObjectKey, now: float) -> bool:
        known = self._by_function.get(function)
        return known is None or now >= known.retry_at


def _served_since(moment: float, seen: Sequence[Worker], workers: WorkerLiveness) -> bool:
    serving = (workers.status_of(worker.unit.metadata.key) for worker in seen if worker.state is WorkerState.SERVING)
    return any(heard is not None and heard.first_seen > moment for heard in serving)
