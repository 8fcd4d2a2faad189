"""Tracks the free concurrency of each function's workers, as the workers report it.

The value is a hint. If a worker has free concurrency, the dispatcher skips the record update and the demand message. If
the value is wrong, no invocation is lost: the invocation waits in the DISPATCH stream for the next free worker.
"""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.contract.timing import capacity_ttl
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class WorkerCapacity:
    free_concurrency: int
    expires_at: float


class FunctionCapacity:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._capacities: dict[str, dict[ObjectKey, WorkerCapacity]] = {}
        self._acquired: dict[str, int] = {}
        """Number of slots that this process acquired since the function's workers last sent an event, by functionID."""

    def observe(self, event: WorkerEvent) -> None:
        function_id, worker = event.function_id, ObjectKey(event.namespace, event.unit)
        if event.kind is WorkerEventKind.DRAINING:
            self._remove(function_id, worker)
            return
        free = max(0, event.concurrency - event.in_flight)
        expires_at = self._clock() + capacity_ttl(event.heartbeat_seconds)
        self._capacities.setdefault(function_id, {})[worker] = WorkerCapacity(free, expires_at)
        self._acquired.pop(function_id, None)

    def remove(self, worker: ObjectKey) -> None:
        """Remove the capacity of a worker whose unit was deleted."""
        for function_id in [each for each, workers in self._capacities.items() if worker in workers]:
            self._remove(function_id, worker)

    def try_acquire(self, function_id: str) -> bool:
        """Acquire one free slot of the function. Return False if the workers reported no slot that is still free."""
        acquired, now = self._acquired.get(function_id, 0), self._clock()
        available = -acquired
        for capacity in self._capacities.get(function_id, {}).values():
            available += capacity.free_concurrency if now < capacity.expires_at else 0
            if available > 0:
                self._acquired[function_id] = acquired + 1
                return True
        return False

    def _remove(self, function_id: str, worker: ObjectKey) -> None:
        workers = self._capacities.get(function_id, {})
        workers.pop(worker, None)
        if not workers:
            self._capacities.pop(function_id, None)
            self._acquired.pop(function_id, None)
