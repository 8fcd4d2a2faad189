"""The batch writer groups results into transactions and retries a batch while the database is unavailable."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.repository import (
    EvictedCounts,
    InsertOutcome,
    RepositorySize,
    ResultPage,
    ResultRow,
    RetentionLimits,
)
from gpu_runtime.result_store.batch_writer import BatchWriter
from gpu_runtime.result_store.metrics import ResultStoreMetrics


@dataclass
class FakeRepository:
    """A repository whose disk can be full and whose writes wait for the test."""

    full: bool = False
    may_write: asyncio.Event = field(default_factory=asyncio.Event)
    batches: list[list[str]] = field(default_factory=list)
    attempt_count: int = 0

    async def insert(self, rows: Sequence[ResultRow], now: datetime) -> list[InsertOutcome]:  # noqa: ARG002
        self.attempt_count += 1
        await self.may_write.wait()
        if self.full:
            raise RepositoryUnavailable("the disk is full")
        self.batches.append([row.invocation_id for row in rows])
        return [InsertOutcome(row.state, inserted=True) for row in rows]

    async def get(self, invocation_id: str) -> ResultRow | None:
        raise NotImplementedError

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> ResultPage:
        raise NotImplementedError

    async def count_since(self, request_id: str, since: datetime) -> int:
        raise NotImplementedError

    async def evict(self, limits: RetentionLimits, now: datetime) -> EvictedCounts:
        raise NotImplementedError

    async def size(self) -> RepositorySize:
        raise NotImplementedError


def row(number: int) -> ResultRow:
    return ResultRow(str(number), "f", "succeeded", b"", b"", datetime(2026, 11, 16, tzinfo=UTC))


@asynccontextmanager
async def running_writer(
    repository: FakeRepository, max_batch_size: int, stopping: asyncio.Event | None = None
) -> AsyncIterator[BatchWriter]:
    writer = BatchWriter(
        repository, max_batch_size, ResultStoreMetrics(), Backoff(initial_seconds=0.01, max_seconds=0.01)
    )
    task = asyncio.create_task(writer.run(stopping or asyncio.Event()))
    try:
        yield writer
    finally:
        task.cancel()
        await asyncio.wait({task})


async def let_tasks_run() -> None:
    """Run all tasks until they wait for the repository."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_results_that_arrive_during_a_write_share_the_next_batch() -> None:
    repository = FakeRepository()
    async with running_writer(repository, max_batch_size=4) as writer, asyncio.TaskGroup() as tasks:
        tasks.create_task(writer.store(row(0)))
        await let_tasks_run()
        for number in range(1, 7):
            tasks.create_task(writer.store(row(number)))
        await let_tasks_run()
        repository.may_write.set()
    assert repository.batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]


async def test_full_disk_retries_the_batch_and_fails_readiness() -> None:
    repository = FakeRepository(full=True)
    repository.may_write.set()
    async with running_writer(repository, max_batch_size=4) as writer, asyncio.TaskGroup() as tasks:
        pending = tasks.create_task(writer.store(row(1)))
        async with asyncio.timeout(60):
            while repository.attempt_count < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert "the disk is full" in str(writer.problem)
        assert not pending.done()
        repository.full = False
        assert (await pending).inserted
        assert writer.problem is None


async def test_stop_with_a_full_disk_fails_all_pending_results() -> None:
    repository, stopping = FakeRepository(full=True), asyncio.Event()
    repository.may_write.set()
    stopping.set()
    async with running_writer(repository, 1, stopping) as writer:
        outcomes = await asyncio.gather(*(writer.store(row(n)) for n in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [RepositoryUnavailable] * 3


async def test_cancelled_result_does_not_affect_the_batch() -> None:
    repository = FakeRepository()
    async with running_writer(repository, max_batch_size=4) as writer:
        cancelled = asyncio.create_task(writer.store(row(1)))
        other = asyncio.create_task(writer.store(row(2)))
        await let_tasks_run()
        cancelled.cancel()
        repository.may_write.set()
        assert (await other).inserted
        with pytest.raises(asyncio.CancelledError):
            await cancelled
