"""Writes results in batches (group commit): results that arrive during a transaction share the next transaction.

If no transaction is running, a result is written immediately. While the database is unavailable, the writer retries the
current batch. During this time no message is acknowledged, so the consumer reaches its in-flight limit and pulls no
more results.
"""

import asyncio
import logging
from collections import deque
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import NoReturn

from gpu_runtime.backoff import Backoff
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import InsertOutcome, ResultRepository, ResultRow
from gpu_runtime.result_store.metrics import ResultStoreMetrics

logger = logging.getLogger(__name__)

WRITE_BACKOFF = Backoff(initial_seconds=0.1, max_seconds=2.0)


@dataclass(frozen=True, eq=False)
class _PendingRow:
    row: ResultRow
    outcome: asyncio.Future[InsertOutcome]


@dataclass
class BatchWriter:
    results: ResultRepository
    max_batch_size: int
    metrics: ResultStoreMetrics
    backoff: Backoff = WRITE_BACKOFF
    problem: str | None = None
    """Why results cannot be stored, for the readiness check. None if the last write succeeded."""
    _pending: deque[_PendingRow] = field(default_factory=deque)
    _arrived: asyncio.Event = field(default_factory=asyncio.Event)

    async def store(self, row: ResultRow) -> InsertOutcome:
        """Store a result. Return the state of the result that the invocation has now, and whether that result is new.

        Raise RepositoryUnavailable if the process stops before the database is available.
        """
        pending = _PendingRow(row, asyncio.get_running_loop().create_future())
        self._pending.append(pending)
        self._arrived.set()
        return await pending.outcome

    async def run(self, stopping: asyncio.Event) -> NoReturn:
        while True:
            await self._arrived.wait()
            self._arrived.clear()
            while self._pending:
                batch = [self._pending.popleft() for _ in range(min(self.max_batch_size, len(self._pending)))]
                await self._commit(batch, stopping)

    async def _commit(self, batch: list[_PendingRow], stopping: asyncio.Event) -> None:
        failures = 0
        while True:
            try:
                outcomes = await self._insert([each.row for each in batch])
            except RepositoryUnavailable as error:
                failures += 1
                self._record_failure(error)
                if await is_set_within(stopping, self.backoff.delay(failures)):
                    return _reject(batch, error)
            else:
                self.problem = None
                return _resolve(batch, outcomes)

    async def _insert(self, rows: list[ResultRow]) -> list[InsertOutcome]:
        with self.metrics.batch_duration.time():
            outcomes = await self.results.insert(rows, datetime.now(UTC))
        self.metrics.batch_results.observe(len(rows))
        for outcome in outcomes:
            if outcome.inserted:
                self.metrics.stored.labels(outcome.state).inc()
            else:
                self.metrics.duplicates.inc()
        return outcomes

    def _record_failure(self, error: RepositoryUnavailable) -> None:
        self.metrics.batch_failures.inc()
        problem = f"results cannot be stored and stay in the RESULT stream: {error}"
        if problem != self.problem:  # log each problem once, not with every retry
            logger.error(
                "result batch was not written; the results stay in the RESULT stream, and the result store will retry",
                extra={"error": str(error)},
            )
        self.problem = problem


def _resolve(batch: list[_PendingRow], outcomes: list[InsertOutcome]) -> None:
    for pending, outcome in zip(batch, outcomes, strict=True):
        if not pending.outcome.done():  # done if the caller of store() was cancelled
            pending.outcome.set_result(outcome)


def _reject(batch: list[_PendingRow], error: RepositoryUnavailable) -> None:
    for pending in batch:
        if not pending.outcome.done():
            pending.outcome.set_exception(error)
