"""A queue of keys to look at. It knows nothing of Kubernetes, and time is the event loop's.

A key waits at most once, however often it is added, and is worked on by one worker at a time: added meanwhile, it waits
again when that worker is done. Keys are taken in the order in which they became due, so none starves.
"""

import asyncio
import heapq
import itertools
from collections.abc import Hashable
from typing import Generic, Protocol, TypeVar

from gpu_runtime.kube.retry import Backoff

K = TypeVar("K", bound=Hashable)


class WorkQueueShutDown(Exception):
    """There is no more work to take."""


class WorkQueueMetrics(Protocol):
    def set_depth(self, waiting: int) -> None: ...
    def observe_queue_duration(self, seconds: float) -> None: ...
    def count_retry(self) -> None: ...


class NoWorkQueueMetrics:
    """For a queue that nobody counts."""

    def set_depth(self, waiting: int) -> None: ...
    def observe_queue_duration(self, seconds: float) -> None: ...
    def count_retry(self) -> None: ...


class WorkQueue(Generic[K]):
    """Made and used inside a running event loop."""

    def __init__(self, backoff: Backoff | None = None, metrics: WorkQueueMetrics | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._metrics: WorkQueueMetrics = metrics or NoWorkQueueMetrics()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[K | _ShutDownMarker] = asyncio.Queue()
        self._queued_at: dict[K, float] = {}
        self._processing: set[K] = set()
        self._dirty: set[K] = set()
        self._failures: dict[K, int] = {}
        self._delayed_until: dict[K, float] = {}
        self._delay_heap: list[tuple[float, int, K]] = []
        self._sequence = itertools.count()
        self._timer: asyncio.Handle | None = None
        self._shutting_down = False

    def add(self, key: K) -> None:
        """Look at this key as soon as a worker is free."""
        if self._shutting_down or key in self._queued_at:
            return
        if key in self._processing:
            self._dirty.add(key)
            return
        self._queued_at[key] = self._loop.time()
        self._ready.put_nowait(key)
        self._metrics.set_depth(len(self._queued_at))

    def add_after(self, key: K, seconds: float) -> None:
        """Look at this key after so many seconds. Of several such wishes for a key, the earliest counts."""
        if self._shutting_down:
            return
        due = self._loop.time() + seconds
        if key in self._delayed_until and self._delayed_until[key] <= due:
            return
        self._delayed_until[key] = due
        heapq.heappush(self._delay_heap, (due, next(self._sequence), key))
        self._set_timer()

    def add_rate_limited(self, key: K) -> float:
        """Look at a key that failed again, each time in a row later than the last. Returns the wait in seconds."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        wait = self._backoff.delay(failures)
        self.add_after(key, wait)
        self._metrics.count_retry()
        return wait

    def forget(self, key: K) -> None:
        """The key is well: its next failure counts as the first."""
        self._failures.pop(key, None)

    def num_requeues(self, key: K) -> int:
        """How often in a row the key has failed."""
        return self._failures.get(key, 0)

    async def get(self) -> K:
        """The next key. Whoever takes it says `done` at the end. Raises QueueClosed."""
        key = await self._ready.get()
        if isinstance(key, _ShutDownMarker):
            self._ready.put_nowait(key)  # for the next worker
            raise WorkQueueShutDown
        self._processing.add(key)
        self._metrics.observe_queue_duration(self._loop.time() - self._queued_at.pop(key))
        self._metrics.set_depth(len(self._queued_at))
        return key

    def done(self, key: K) -> None:
        self._processing.discard(key)
        if key in self._dirty:
            self._dirty.discard(key)
            self.add(key)

    def shut_down(self) -> None:
        """Hand out nothing more. What waits is dropped, for whoever looks next will look at everything."""
        if self._shutting_down:
            return
        self._shutting_down = True
        if self._timer is not None:
            self._timer.cancel()
        while not self._ready.empty():
            self._ready.get_nowait()
        self._queued_at.clear()
        self._metrics.set_depth(0)
        self._ready.put_nowait(_ShutDownMarker())

    def __len__(self) -> int:
        return len(self._queued_at)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._delay_heap and self._delayed_until.get(self._delay_heap[0][2]) != self._delay_heap[0][0]:
            heapq.heappop(self._delay_heap)  # an earlier wish for the same key took its place
        if self._delay_heap:
            due = self._delay_heap[0][0]
            self._timer = self._loop.call_at(due, self._add_due, due)

    def _add_due(self, set_for: float) -> None:
        # A timer may fire a clock tick early; what it was set for counts as due. The handle cannot be asked for that:
        # of a time that has passed already, uvloop makes no timer.
        now = max(self._loop.time(), set_for)
        while self._delay_heap and self._delay_heap[0][0] <= now:
            due, _, key = heapq.heappop(self._delay_heap)
            if self._delayed_until.get(key) == due:
                del self._delayed_until[key]
                self.add(key)
        self._set_timer()


class _ShutDownMarker:
    """Comes after the last key."""
