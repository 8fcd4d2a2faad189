"""Decides how many create requests run at the same time, and which request is the next one.

The requests of all callers run in turn, so a caller with many requests delays another caller by only one request.
Requests that create workers have reserved turns, so a flood of requests does not delay a cold start. If a caller has
too many waiting requests, the next one gets 429.
"""

import asyncio
from collections import OrderedDict, deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import TypeAlias

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.runtime_api.units.metrics import CreateMetrics, CreateRefusal

MAX_CONCURRENT_HANDOFFS = 8
"""Maximum number of create requests of callers that this replica processes at the same time. Further requests wait.
Without the limit all of them would compete for the API server in every step, and none would finish before its
timeout."""
RESERVED_WORKER_HANDOFFS = 2
"""Number of further create requests that this replica processes at the same time, if they create workers."""
DEFAULT_MAX_QUEUED_PER_CALLER = 1000
QUEUE_RETRY_SECONDS = 1.0

_Queue: TypeAlias = tuple[str, bool]
"""The caller, and whether the requests of this queue create workers."""


class CallerSemaphore:
    def __init__(
        self, max_queued_per_caller: int = DEFAULT_MAX_QUEUED_PER_CALLER, metrics: CreateMetrics | None = None
    ) -> None:
        self._max_queued_per_caller = max_queued_per_caller
        self._metrics = metrics or CreateMetrics()
        self._queues: OrderedDict[_Queue, deque[asyncio.Future[None]]] = OrderedDict()
        """The waiting requests of each caller. The first queue that may run is the next one."""
        self._running = 0
        self._running_workers = 0

    @asynccontextmanager
    async def turn(self, caller: str, *, is_worker: bool = False) -> AsyncIterator[None]:
        """Wait for a turn, and hold it for the duration of the block. Raises Overloaded if too many requests wait."""
        await self._wait_for_turn((caller, is_worker))
        try:
            yield
        finally:
            self._end_turn(is_worker=is_worker)

    async def _wait_for_turn(self, queue: _Queue) -> None:
        turn = self._enqueue(queue)
        self._start_next()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.done() and not turn.cancelled():  # the turn has started, but the request ended while it waited
                self._end_turn(is_worker=queue[1])
            raise

    def _enqueue(self, queue: _Queue) -> asyncio.Future[None]:
        waiting = self._queues.get(queue, ())
        if len(waiting) >= self._max_queued_per_caller:
            self._metrics.refused.labels(CreateRefusal.QUEUE_FULL.value).inc()
            raise Overloaded(
                f"{queue[0]} has {len(waiting)} waiting create requests; wait for their responses",
                QUEUE_RETRY_SECONDS,
            )
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._queues.setdefault(queue, deque()).append(turn)
        return turn

    def _start_next(self) -> None:
        while queue := next((each for each in self._queues if self._may_start(is_worker=each[1])), None):
            waiting = self._queues.pop(queue)
            turn = waiting.popleft()
            if waiting:
                self._queues[queue] = waiting  # at the end: the other callers come first
            if not turn.done():  # a request that timed out while it waited is done
                turn.set_result(None)
                self._running += 1
                self._running_workers += queue[1]

    def _may_start(self, *, is_worker: bool) -> bool:
        """Whether a turn is free. Workers use the turns of callers only if their reserved turns are not free."""
        if is_worker:
            return self._running < MAX_CONCURRENT_HANDOFFS + RESERVED_WORKER_HANDOFFS
        beside_workers = self._running - min(self._running_workers, RESERVED_WORKER_HANDOFFS)
        return beside_workers < MAX_CONCURRENT_HANDOFFS

    def _end_turn(self, *, is_worker: bool) -> None:
        self._running -= 1
        self._running_workers -= is_worker
        self._start_next()
