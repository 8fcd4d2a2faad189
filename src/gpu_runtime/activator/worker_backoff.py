"""Functions whose workers fail: no more are made for a while, each time longer, until one of them has served."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from gpu_runtime.activator.autoscaler import Worker, WorkerState
from gpu_runtime.activator.worker_liveness import Workers
from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.meta import Key


@dataclass
class _Setback:
    failures: int = 0
    last: float = 0.0
    until: float = 0.0
    counted: set[str] = field(default_factory=set)
    """The UIDs of the workers that failed."""


@dataclass
class Setbacks:
    backoff: Backoff
    _known: dict[Key, _Setback] = field(default_factory=dict)

    def note(self, function: Key, seen: Sequence[Worker], workers: Workers, now: float) -> list[Worker]:
        """Take note of what the function's workers have come to. Gives those that have failed since the last time."""
        known = self._known.get(function)
        counted = known.counted if known else set()
        broken = [worker for worker in seen if worker.state is WorkerState.BROKEN and not worker.own]
        new = [worker for worker in broken if worker.unit.metadata.uid not in counted]
        if new:
            known = self._known.setdefault(function, _Setback())
            known.failures, known.last = known.failures + 1, now
            known.until = now + self.backoff.delay(known.failures)
            known.counted = {worker.unit.metadata.uid for worker in broken}
        elif known is not None and _came_since(known.last, seen, workers):
            del self._known[function]
        return new

    def forget(self, function: Key) -> None:
        """The function is gone: one that comes under its name may be a better one."""
        self._known.pop(function, None)

    def over(self, function: Key, now: float) -> bool:
        known = self._known.get(function)
        return known is None or now >= known.until


def _came_since(moment: float, seen: Sequence[Worker], workers: Workers) -> bool:
    serving = (workers.of(worker.unit.metadata.key) for worker in seen if worker.state is WorkerState.SERVING)
    return any(heard is not None and heard.since > moment for heard in serving)
