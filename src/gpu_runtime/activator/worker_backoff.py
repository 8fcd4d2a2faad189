"""Decides when the activator may create workers again for a function whose workers fail.

A worker has failed if it is unhealthy, or if it drained soon after its start although the activator did not request the
drain. Without the second rule, if a worker drains itself repeatedly, the activator would replace it without a delay,
and each replacement leaves Operations.

Each failure doubles the delay, up to a maximum. The delay ends when a serving worker has sent its first event after the
last failure. The failures are no longer counted when such a worker has served for `STABLE_WORKER_SECONDS`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runtime.activator.autoscaler import Worker, WorkerState
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.kube.meta import ObjectKey

STABLE_WORKER_SECONDS = 60.0
"""Time in seconds that a worker must serve before the activator no longer counts earlier failures. A worker that drains
earlier without a request has failed. If a worker drains later, its node is probably drained or its pod replaced."""


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
    _drain_requests: dict[ObjectKey, set[str]] = field(default_factory=dict)
    """UIDs of the workers to which this process has sent a drain request, by function."""

    def observe(
        self, function: ObjectKey, workers: Sequence[Worker], liveness: WorkerLiveness, now: float
    ) -> list[Worker]:
        """Update the backoff of a function. Return the workers that failed since the last call."""
        state = self._by_function.get(function)
        requested = self._current_drain_requests(function, workers)
        counted_uids = state.failed_uids if state else set()
        newly_failed = [
            worker
            for worker in workers
            if worker.unit.metadata.uid not in counted_uids
            and _has_failed(worker, liveness, now, drain_requested=worker.unit.metadata.uid in requested)
        ]
        if newly_failed:
            state = self._by_function.setdefault(function, _FunctionBackoff())
            state.failures, state.last_failure_at = state.failures + 1, now
            state.retry_at = now + self.backoff.delay(state.failures)
            present = {worker.unit.metadata.uid for worker in workers}
            state.failed_uids = (counted_uids & present) | {worker.unit.metadata.uid for worker in newly_failed}
        elif state is not None:
            self._end_backoff(function, _served_since(state.last_failure_at, workers, liveness), now)
        return newly_failed

    def record_drain_request(self, worker: GPUUnit) -> None:
        """Record that this process requests the drain, so that the drain is not a failure of the worker."""
        if worker.spec.serverless is not None:
            function = ObjectKey(worker.metadata.namespace, worker.spec.serverless.worker_of)
            self._drain_requests.setdefault(function, set()).add(worker.metadata.uid)

    def remove(self, function: ObjectKey) -> None:
        """Reset the backoff of a deleted function. A new function with the same name starts without backoff."""
        self._by_function.pop(function, None)
        self._drain_requests.pop(function, None)

    def allows_create(self, function: ObjectKey, now: float) -> bool:
        state = self._by_function.get(function)
        return state is None or now >= state.retry_at

    def _end_backoff(self, function: ObjectKey, served_since: float | None, now: float) -> None:
        if served_since is not None:
            self._by_function[function].retry_at = now
            if now - served_since >= STABLE_WORKER_SECONDS:
                del self._by_function[function]

    def _current_drain_requests(self, function: ObjectKey, workers: Sequence[Worker]) -> set[str]:
        """Return the workers with a drain request. Remove the workers that no longer exist."""
        requested = self._drain_requests.get(function, set()) & {worker.unit.metadata.uid for worker in workers}
        if requested:
            self._drain_requests[function] = requested
        else:
            self._drain_requests.pop(function, None)
        return requested


def _has_failed(worker: Worker, liveness: WorkerLiveness, now: float, *, drain_requested: bool) -> bool:
    if worker.is_function_unit:
        return False
    if worker.state is not WorkerState.DRAINING:
        return worker.state is WorkerState.UNHEALTHY
    status = liveness.status_of(worker.unit.metadata.key)
    return not drain_requested and status is not None and now - status.first_seen < STABLE_WORKER_SECONDS


def _served_since(since: float, workers: Sequence[Worker], liveness: WorkerLiveness) -> float | None:
    """Return when the first event of the earliest worker arrived that began to serve after `since`."""
    statuses = (liveness.status_of(each.unit.metadata.key) for each in workers if each.state is WorkerState.SERVING)
    return min((status.first_seen for status in statuses if status and status.first_seen > since), default=None)
