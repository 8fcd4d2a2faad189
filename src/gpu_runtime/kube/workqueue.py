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


class QueueClosed(Exception):
    """There is no more work to take."""


class QueueMetrics(Protocol):
    def depth(self, waiting: int) -> None: ...
    def waited(self, seconds: float) -> None: ...
    def retried(self) -> None: ...


class Unmeasured:
    """For a queue that nobody counts."""

    def depth(self, waiting: int) -> None: ...
    def waited(self, seconds: float) -> None: ...
    def retried(self) -> None: ...


class WorkQueue(Generic[K]):
    """Made and used inside a running event loop."""

    def __init__(self, backoff: Backoff | None = None, metrics: QueueMetrics | None = None) -> None:
        self._backoff = backoff or Backoff()
        self._metrics: QueueMetrics = metrics or Unmeasured()
        self._loop = asyncio.get_running_loop()
        self._ready: asyncio.Queue[K | _End] = asyncio.Queue()
        self._due_since: dict[K, float] = {}
        self._working: set[K] = set()
        self._again: set[K] = set()
        self._failures: dict[K, int] = {}
        self._later: dict[K, float] = {}
        self._order: list[tuple[float, int, K]] = []
        self._turns = itertools.count()
        self._timer: asyncio.Handle | None = None
        self._closed = False

    def add(self, key: K) -> None:
        """Look at this key as soon as a worker is free."""
        if self._closed or key in self._due_since:
            return
        if key in self._working:
            self._again.add(key)
            return
        self._due_since[key] = self._loop.time()
        self._ready.put_nowait(key)
        self._metrics.depth(len(self._due_since))

    def add_after(self, key: K, seconds: float) -> None:
        """Look at this key after so many seconds. Of several such wishes for a key, the earliest counts."""
        if self._closed:
            return
        due = self._loop.time() + seconds
        if key in self._later and self._later[key] <= due:
            return
        self._later[key] = due
        heapq.heappush(self._order, (due, next(self._turns), key))
        self._set_timer()

    def retry(self, key: K) -> float:
        """Look at a key that failed again, each time in a row later than the last. Returns the wait in seconds."""
        self._failures[key] = failures = self._failures.get(key, 0) + 1
        wait = self._backoff.delay(failures)
        self.add_after(key, wait)
        self._metrics.retried()
        return wait

    def forget(self, key: K) -> None:
        """The key is well: its next failure counts as the first."""
        self._failures.pop(key, None)

    def failures(self, key: K) -> int:
        """How often in a row the key has failed."""
        return self._failures.get(key, 0)

    async def take(self) -> K:
        """The next key. Whoever takes it says `done` at the end. Raises QueueClosed."""
        key = await self._ready.get()
        if isinstance(key, _End):
            self._ready.put_nowait(key)  # for the next worker
            raise QueueClosed
        self._working.add(key)
        self._metrics.waited(self._loop.time() - self._due_since.pop(key))
        self._metrics.depth(len(self._due_since))
        return key

    def done(self, key: K) -> None:
        self._working.discard(key)
        if key in self._again:
            self._again.discard(key)
            self.add(key)

    def close(self) -> None:
        """Hand out nothing more. What waits is dropped, for whoever looks next will look at everything."""
        if self._closed:
            return
        self._closed = True
        if self._timer is not None:
            self._timer.cancel()
        while not self._ready.empty():
            self._ready.get_nowait()
        self._due_since.clear()
        self._metrics.depth(0)
        self._ready.put_nowait(_End())

    def __len__(self) -> int:
        return len(self._due_since)

    def _set_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        while self._order and self._later.get(self._order[0][2]) != self._order[0][0]:
            heapq.heappop(self._order)  # an earlier wish for the same key took its place
        if self._order:
            due = self._order[0][0]
            self._timer = self._loop.call_at(due, self._add_due, due)

    def _add_due(self, moment: float) -> None:
        # A timer may fire a clock tick early; what it was set for counts as due.
        now = max(self._loop.time(), moment)
        while self._order and self._order[0][0] <= now:
            due, _, key = heapq.heappop(self._order)
            if self._later.get(key) == due:
                del self._later[key]
                self.add(key)
        self._set_timer()


class _End:
    """Comes after the last key."""
