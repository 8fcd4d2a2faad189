"""A workqueue of keys with delays and per-key backoff, like the workqueue of client-go. It does not use Kubernetes.

A key is queued at most once, even if it is added several times. Only one worker at a time processes a key: if the key
is added while a worker processes it, the queue returns the key again after the worker calls `done`. The queue returns
keys in the order in which they became due, so no key starves. Delays use the clock of the event loop.
"""

import asyncio
import heapq
import itertools
import time
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.metrics import KubeMetrics, WorkQueueMetrics

K = TypeVar("K", bound=Hashable)


class WorkQueueShutDown(Exception):
    """The queue was shut down and returns no more keys."""


class WorkQueue(Generic[K]):
    """A workqueue. Create and use it inside a running event loop."""

    def __init__(
        self,
        backoff: Backoff | None = None,
        metrics: WorkQueueMetrics | None = None,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._backoff = backoff or Backoff()
        self._metrics = metrics or KubeMetrics().of_workqueue("")
        # Durations need a finer clock than that of the event loop, which counts only milliseconds on uvloop.
        self._clock = clock
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[K | _ShutDownMarker] = asyncio.Queue()
        self._queued_at: dict[K, float] = {}
        self._dirty: dict[K, float] = {}
        """Keys that were added while a worker was processing them, with the time of the `add`."""
        self._processing: dict[K, float] = {}
        """Keys between `get` and `done`, with the time of the `get`."""
        self._failures: dict[K, int] = {}
        self._delayed_until: dict[K, float] = {}
        self._delay_heap: list[tuple[float, int, K]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.Handle | None = None
        self._shutting_down = False
        self._metrics.unfinished_work.set_function(self.unfinished_work_seconds)
        self._metrics.longest_running_processor.set_function(self.longest_running_seconds)

    def add(self, key: K) -> None:
        """Queue the key, unless it is already waiting."""
        if self._shutting_down or key in self._queued_at or key in self._dirty:
            return
        if key in self._processing:
            self._dirty[key] = self._clock()
        else:
            self._push(key, self._clock())
        self._metrics.adds.inc()
        self._report_depth()

    def add_after(self, key: K, seconds: float) -> None:
        """Queue the key after a delay. If a key has several delays, only the delay that ends first takes effect."""
        if self._shutting_down:
            return
        self._metrics.retries.inc()
        due = self._loop.time() + seconds
        if key in self._delayed_until and self._delayed_until[key] <= due:
            return
        self._delayed_until[key] = due
        heapq.heappush(self._delay_heap, (due, next(self._sequence), key))
        self._set_timer()

    def add_rate_limited(self, key: K) -> float:
        """Queue a key that failed, after a delay that grows with its consecutive failures. Return the delay."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        delay = self._backoff.delay(failures)
        self.add_after(key, delay)
        return delay

    def forget(self, key: K) -> None:
        """Reset the backoff of a key that succeeded: its next failure counts as the first."""
        self._failures.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """Return the number of consecutive failures of the key."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """Wait for the next key and return it. The caller must call `done` with the key. Raises WorkQueueShutDown."""
        key = await self._ready.get()
        if isinstance(key, _ShutDownMarker):
            self._ready.put_nowait(key)  # the other workers need the marker, too
            raise WorkQueueShutDown
        now = self._clock()
        self._processing[key] = now
        self._metrics.queue_duration.observe(now - self._queued_at.pop(key))
        self._report_depth()
        return key

    def done(self, key: K) -> None:
        """Mark a key as processed. If the key was added while it was processed, queue it now."""
        if (started := self._processing.pop(key, None)) is not None:
            self._metrics.work_duration.observe(self._clock() - started)
        if (added := self._dirty.pop(key, None)) is not None:
            self._push(key, added)

    def shut_down(self) -> None:
        """Drop the waiting keys and return no more keys.

        A controller does not need the dropped keys: the next leader reconciles every object.
        """
        if self._shutting_down:
            return
        self._shutting_down = True
        if self._timer is not None:
            self._timer.cancel()
        while not self._ready.empty():
            self._ready.get_nowait()
        self._queued_at.clear()
        self._dirty.clear()
        self._report_depth()
        self._ready.put_nowait(_ShutDownMarker())

    def unfinished_work_seconds(self) -> float:
        """Return the total time for which the keys between `get` and `done` have been in progress."""
        now = self._clock()
        return sum(now - started for started in self._processing.values())

    def longest_running_seconds(self) -> float:
        """Return the longest time for which a key has been in progress (between `get` and `done`), or 0 if none is."""
        now = self._clock()
        return max((now - started for started in self._processing.values()), default=0.0)

    def __len__(self) -> int:
        return len(self._queued_at)

    def _push(self, key: K, added: float) -> None:
        self._queued_at[key] = added
        self._ready.put_nowait(key)

    def _report_depth(self) -> None:
        self._metrics.depth.set(len(self._queued_at) + len(self._dirty))

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._delay_heap and self._delayed_until.get(self._delay_heap[0][2]) != self._delay_heap[0][0]:
            heapq.heappop(self._delay_heap)  # replaced by an earlier delay of the same key
        if self._delay_heap:
            due = self._delay_heap[0][0]
            self._timer = self._loop.call_at(due, self._add_due, due)

    def _add_due(self, timer_due: float) -> None:
        # A timer may fire one clock tick early. So keys that are due at the time of the timer count as due. The time is
        # an argument, because the handle of the timer does not always have it: for a time in the past, uvloop creates a
        # handle without a timer.
        now = max(self._loop.time(), timer_due)
        while self._delay_heap and self._delay_heap[0][0] <= now:
            due, _, key = heapq.heappop(self._delay_heap)
            if self._delayed_until.get(key) == due:
                del self._delayed_until[key]
                self.add(key)
        self._set_timer()


class _ShutDownMarker:
    """Marks the end of the queue after a shutdown."""
