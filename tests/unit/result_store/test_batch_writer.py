"""Results share transactions; while the database cannot be used they wait, and nobody is told that they are stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

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
    """A repository whose disk a test fills, and whose writes it holds up."""

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

    async def evict(self, keeping: RetentionLimits, now: datetime) -> EvictedCounts:
        raise NotImplementedError

    async def size(self) -> RepositorySize:
        raise NotImplementedError


def row(number: int) -> ResultRow:
    return ResultRow(str(number), "f", "succeeded", b"", b"")


@asynccontextmanager
async def running_batches(
    disk: FakeRepository, most: int, stopping: asyncio.Event | None = None
) -> AsyncIterator[BatchWriter]:
    batches = BatchWriter(disk, most, ResultStoreMetrics(), Backoff(initial_seconds=0.01, max_seconds=0.01))
    task = asyncio.create_task(batches.run(stopping or asyncio.Event()))
    try:
        yield batches
    finally:
        task.cancel()
        await asyncio.wait({task})


async def let_tasks_run() -> None:
    """Everything that can go on without the disk has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_results_that_arrive_during_a_write_share_the_next_batch() -> None:
    disk = FakeRepository()
    async with running_batches(disk, most=4) as batches, asyncio.TaskGroup() as tasks:
        tasks.create_task(batches.store(row(0)))
        await let_tasks_run()
        for number in range(1, 7):
            tasks.create_task(batches.store(row(number)))
        await let_tasks_run()
        disk.may_write.set()
    assert disk.batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]


async def test_full_disk_retries_the_batch_and_fails_readiness() -> None:
    disk = FakeRepository(full=True)
    disk.may_write.set()
    async with running_batches(disk, most=4) as batches, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(batches.store(row(1)))
        async with asyncio.timeout(60):
            while disk.attempt_count < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert "the disk is full" in str(batches.problem)
        assert not waiting.done()
        disk.full = False
        assert (await waiting).inserted
        assert batches.problem is None


async def test_stop_with_a_full_disk_fails_all_pending_results() -> None:
    disk, stopping = FakeRepository(full=True), asyncio.Event()
    disk.may_write.set()
    stopping.set()
    async with running_batches(disk, 1, stopping) as batches:
        outcomes = await asyncio.gather(*(batches.store(row(n)) for n in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [RepositoryUnavailable] * 3


async def test_cancelled_result_does_not_affect_the_batch() -> None:
    disk = FakeRepository()
    async with running_batches(disk, most=4) as batches:
        gone = asyncio.create_task(batches.store(row(1)))
        stays = asyncio.create_task(batches.store(row(2)))
        await let_tasks_run()
        gone.cancel()
        disk.may_write.set()
        assert (await stays).inserted
        with pytest.raises(asyncio.CancelledError):
            await gone
