"""Whether a function's workers have room for one more call, as far as they said. A hint: nothing rests on it."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import ObjectKey

CAPACITY_TTL_SECONDS = 12.0
"""Seconds after which a worker that says nothing is not counted on: two heartbeats and a little."""


@dataclass(frozen=True)
class WorkerCapacity:
    free_concurrency: int
    reported_at: float


class FunctionCapacity:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._capacities: dict[str, dict[ObjectKey, WorkerCapacity]] = {}
        self._acquired: dict[str, int] = {}
        """Places that were given away here since the function's workers last said how many they have."""

    def observe(self, event: WorkerEvent) -> None:
        request_id, worker = event.serverless_request_id, ObjectKey(event.namespace, event.unit)
        if event.kind is WorkerEventKind.DRAINING:
            self._remove(request_id, worker)
            return
        places = max(0, event.concurrency - event.in_flight)
        self._capacities.setdefault(request_id, {})[worker] = WorkerCapacity(places, self._clock())
        self._acquired.pop(request_id, None)

    def remove(self, worker: ObjectKey) -> None:
        """The worker is gone."""
        for request_id in [each for each, workers in self._capacities.items() if worker in workers]:
            self._remove(request_id, worker)

    def try_acquire(self, request_id: str) -> bool:
        """Take a place, where there is one."""
        taken, now = self._acquired.get(request_id, 0), self._clock()
        left = -taken
        for free in self._capacities.get(request_id, {}).values():
            left += free.free_concurrency if now - free.reported_at < CAPACITY_TTL_SECONDS else 0
            if left > 0:
                self._acquired[request_id] = taken + 1
                return True
        return False

    def _remove(self, request_id: str, worker: ObjectKey) -> None:
        workers = self._capacities.get(request_id, {})
        workers.pop(worker, None)
        if not workers:
            self._capacities.pop(request_id, None)
            self._acquired.pop(request_id, None)
