"""Group commit: results that arrive while a transaction is written share the next one.

One result alone is written at once. While the database cannot be used, the batch in hand is tried again: nothing is
acknowledged, and nothing more is taken from the queue.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass
from typing import NoReturn

from gpu_runtime.backoff import Backoff
from gpu_runtime.result_repository.errors import Unusable
from gpu_runtime.result_repository.repository import Results, Row, Standing
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import StoreMetrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _Waiting:
    row: Row
    standing: asyncio.Future[Standing]


class Batches:
    def __init__(self, results: Results, most: int, metrics: StoreMetrics, backoff: Backoff | None = None) -> None:
        self.problem: str | None = None
        """Why nothing is stored, for readiness; None where all is well."""
        self._results, self._most, self._metrics = results, most, metrics
        self._backoff = backoff or Backoff(first=0.1, longest=2.0)
        self._waiting: deque[_Waiting] = deque()
        self._arrived = asyncio.Event()

    async def stored(self, row: Row) -> Standing:
        """Have a result stored, and give what stands for its invocation then. Unusable if the process stops before."""
        waiting = _Waiting(row, asyncio.get_running_loop().create_future())
        self._waiting.append(waiting)
        self._arrived.set()
        return await waiting.standing

    async def run(self, stopping: asyncio.Event) -> NoReturn:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._waiting:
                batch = [self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))]
                await self._settle(batch, stopping)

    async def _settle(self, batch: list[_Waiting], stopping: asyncio.Event) -> None:
        failures = 0
        while True:
            try:
                standings = await self._write([each.row for each in batch])
            except Unusable as error:
                failures += 1
                self._complain(error)
                if await _set_within(stopping, self._backoff.delay(failures)):
                    return _refuse(batch, error)
            else:
                self.problem = None
                return _tell(batch, standings)

    async def _write(self, rows: list[Row]) -> list[Standing]:
        with self._metrics.batch_seconds.time():
            standings = await self._results.insert(rows, now())
        self._metrics.batch_results.observe(len(rows))
        for standing in standings:
            if standing.new:
                self._metrics.stored.labels(standing.state).inc()
            else:
                self._metrics.duplicates.inc()
        return standings

    def _complain(self, error: Unusable) -> None:
        self._metrics.batch_failures.inc()
        problem = f"results cannot be stored, and wait in their queue: {error}"
        if problem != self.problem:
            logger.error("%s", problem)
        self.problem = problem


async def _set_within(stopping: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return False
    return True


def _tell(batch: list[_Waiting], standings: list[Standing]) -> None:
    for waiting, standing in zip(batch, standings, strict=True):
        if not waiting.standing.done():  # whoever waited was cancelled
            waiting.standing.set_result(standing)


def _refuse(batch: list[_Waiting], error: Unusable) -> None:
    for waiting in batch:
        if not waiting.standing.done():
            waiting.standing.set_exception(error)
