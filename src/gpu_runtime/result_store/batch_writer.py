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
from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import InsertOutcome, ResultRepository, ResultRow
from gpu_runtime.result_store.message_clock import now
from gpu_runtime.result_store.metrics import ResultStoreMetrics

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class _PendingRow:
    row: ResultRow
    outcome: asyncio.Future[InsertOutcome]


class BatchWriter:
    def __init__(
        self, results: ResultRepository, most: int, metrics: ResultStoreMetrics, backoff: Backoff | None = None
    ) -> None:
        self.problem: str | None = None
        """Why nothing is stored, for readiness; None where all is well."""
        self._results, self._max_batch_size, self._metrics = results, most, metrics
        self._backoff = backoff or Backoff(initial_seconds=0.1, max_seconds=2.0)
        self._pending: deque[_PendingRow] = deque()
        self._arrived = asyncio.Event()

    async def store(self, row: ResultRow) -> InsertOutcome:
        """Have a result stored, and give what stands for its invocation then. Unusable if the process stops before."""
        waiting = _PendingRow(row, asyncio.get_running_loop().create_future())
        self._pending.append(waiting)
        self._arrived.set()
        return await waiting.outcome

    async def run(self, stopping: asyncio.Event) -> NoReturn:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(self._max_batch_size, len(self._pending)))]
                await self._commit(batch, stopping)

    async def _commit(self, batch: list[_PendingRow], stopping: asyncio.Event) -> None:
        failures = 0
        while True:
            try:
                standings = await self._insert([each.row for each in batch])
            except RepositoryUnavailable as error:
                failures += 1
                self._record_failure(error)
                if await _is_set_within(stopping, self._backoff.delay(failures)):
                    return _reject(batch, error)
            else:
                self.problem = None
                return _resolve(batch, standings)

    async def _insert(self, rows: list[ResultRow]) -> list[InsertOutcome]:
        with self._metrics.batch_duration.time():
            standings = await self._results.insert(rows, now())
        self._metrics.batch_results.observe(len(rows))
        for standing in standings:
            if standing.inserted:
                self._metrics.stored.labels(standing.state).inc()
            else:
                self._metrics.duplicates.inc()
        return standings

    def _record_failure(self, error: RepositoryUnavailable) -> None:
        self._metrics.batch_failures.inc()
        problem = f"results cannot be stored, and wait in their queue: {error}"
        if problem != self.problem:
            logger.error("%s", problem)
        self.problem = problem


async def _is_set_within(stopping: asyncio.Event, seconds: float) -> bool:
    try:
        async with asyncio.timeout(seconds):
            await stopping.wait()
    except TimeoutError:
        return False
    return True


def _resolve(batch: list[_PendingRow], standings: list[InsertOutcome]) -> None:
    for waiting, standing in zip(batch, standings, strict=True):
        if not waiting.outcome.done():  # whoever waited was cancelled
            waiting.outcome.set_result(standing)


def _reject(batch: list[_PendingRow], error: RepositoryUnavailable) -> None:
    for waiting in batch:
        if not waiting.outcome.done():
            waiting.outcome.set_exception(error)
