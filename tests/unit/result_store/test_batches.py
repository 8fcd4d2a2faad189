"""Results share transactions; while the database cannot be used they wait, and nobody is told that they are stored."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.result_repository.errors import Unusable
from gpu_runtime.result_repository.repository import Forgotten, Keeping, Page, Row, Size, Standing
from gpu_runtime.result_store.batch_writer import Batches
from gpu_runtime.result_store.metrics import StoreMetrics


@dataclass
class Disk:
    """A repository whose disk a test fills, and whose writes it holds up."""

    full: bool = False
    may_write: asyncio.Event = field(default_factory=asyncio.Event)
    batches: list[list[str]] = field(default_factory=list)
    tries: int = 0

    async def insert(self, rows: Sequence[Row], now: datetime) -> list[Standing]:  # noqa: ARG002
        self.tries += 1
        await self.may_write.wait()
        if self.full:
            raise Unusable("the disk is full")
        self.batches.append([row.invocation_id for row in rows])
        return [Standing(row.state, new=True) for row in rows]

    async def get(self, invocation_id: str) -> Row | None:
        raise NotImplementedError

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> Page:
        raise NotImplementedError

    async def forget(self, keeping: Keeping, now: datetime) -> Forgotten:
        raise NotImplementedError

    async def size(self) -> Size:
        raise NotImplementedError


def row(number: int) -> Row:
    return Row(str(number), "f", "succeeded", b"", b"")


@asynccontextmanager
async def running(disk: Disk, most: int, stopping: asyncio.Event | None = None) -> AsyncIterator[Batches]:
    batches = Batches(disk, most, StoreMetrics(), Backoff(first=0.01, longest=0.01))
    task = asyncio.create_task(batches.run(stopping or asyncio.Event()))
    try:
        yield batches
    finally:
        task.cancel()
        await asyncio.wait({task})


async def settled() -> None:
    """Everything that can go on without the disk has gone on."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_what_arrives_during_a_write_shares_the_next_one() -> None:
    disk = Disk()
    async with running(disk, most=4) as batches, asyncio.TaskGroup() as tasks:
        tasks.create_task(batches.stored(row(0)))
        await settled()
        for number in range(1, 7):
            tasks.create_task(batches.stored(row(number)))
        await settled()
        disk.may_write.set()
    assert disk.batches == [["0"], ["1", "2", "3", "4"], ["5", "6"]]


async def test_while_the_disk_is_full_the_same_batch_is_tried_again_and_readiness_says_so() -> None:
    disk = Disk(full=True)
    disk.may_write.set()
    async with running(disk, most=4) as batches, asyncio.TaskGroup() as tasks:
        waiting = tasks.create_task(batches.stored(row(1)))
        async with asyncio.timeout(60):
            while disk.tries < 3:  # noqa: ASYNC110
                await asyncio.sleep(0.005)
        assert "the disk is full" in str(batches.problem)
        assert not waiting.done()
        disk.full = False
        assert (await waiting).new
        assert batches.problem is None


async def test_told_to_stop_with_a_full_disk_everybody_hears_that_nothing_was_stored() -> None:
    disk, stopping = Disk(full=True), asyncio.Event()
    disk.may_write.set()
    stopping.set()
    async with running(disk, 1, stopping) as batches:
        outcomes = await asyncio.gather(*(batches.stored(row(n)) for n in range(3)), return_exceptions=True)
    assert [type(each) for each in outcomes] == [Unusable] * 3


async def test_one_who_no_longer_waits_does_not_disturb_the_others() -> None:
    disk = Disk()
    async with running(disk, most=4) as batches:
        gone = asyncio.create_task(batches.stored(row(1)))
        stays = asyncio.create_task(batches.stored(row(2)))
        await settled()
        gone.cancel()
        disk.may_write.set()
        assert (await stays).new
        with pytest.raises(asyncio.CancelledError):
            await gone
