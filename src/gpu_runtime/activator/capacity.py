"""Whether a function's workers have room for one more call, as far as they said. A hint: nothing rests on it."""

from collections.abc import Callable
from dataclasses import dataclass

from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.kube.meta import Key

SILENCE = 12.0
"""Seconds after which a worker that says nothing is not counted on: two heartbeats and a little."""


@dataclass(frozen=True)
class Free:
    places: int
    at: float


class Room:
    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._free: dict[str, dict[Key, Free]] = {}
        self._taken: dict[str, int] = {}
        """Places that were given away here since the function's workers last said how many they have."""

    def hear(self, event: WorkerEvent) -> None:
        request_id, worker = event.serverless_request_id, Key(event.namespace, event.worker)
        if event.kind is WorkerEventKind.DRAINING:
            self._leave(request_id, worker)
            return
        places = max(0, event.concurrency - event.in_flight)
        self._free.setdefault(request_id, {})[worker] = Free(places, self._clock())
        self._taken.pop(request_id, None)

    def leave(self, worker: Key) -> None:
        """The worker is gone."""
        for request_id in [each for each, workers in self._free.items() if worker in workers]:
            self._leave(request_id, worker)

    def take(self, request_id: str) -> bool:
        """Take a place, where there is one."""
        taken, now = self._taken.get(request_id, 0), self._clock()
        left = -taken
        for free in self._free.get(request_id, {}).values():
            left += free.places if now - free.at < SILENCE else 0
            if left > 0:
                self._taken[request_id] = taken + 1
                return True
        return False

    def _leave(self, request_id: str, worker: Key) -> None:
        workers = self._free.get(request_id, {})
        workers.pop(worker, None)
        if not workers:
            self._free.pop(request_id, None)
            self._taken.pop(request_id, None)
