"""Callers take turns, workers have reserved turns, and a full queue of one caller does not affect the others."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.runtime_api.units.caller_semaphore import (
    MAX_CONCURRENT_HANDOFFS,
    RESERVED_WORKER_HANDOFFS,
    CallerSemaphore,
)


class Load:
    """Requests that hold their turns until the test ends them."""

    def __init__(self, semaphore: CallerSemaphore) -> None:
        self.semaphore = semaphore
        self.started: list[str] = []
        self.tasks: dict[str, asyncio.Task[None]] = {}
        self._ends: dict[str, asyncio.Event] = {}

    async def send(self, caller: str, count: int, *, is_worker: bool = False) -> None:
        for number in range(count):
            name = f"{caller}-{number}"
            self._ends[name] = asyncio.Event()
            self.tasks[name] = asyncio.create_task(self._request(name, caller, is_worker=is_worker))
        await asyncio.sleep(0)

    async def _request(self, name: str, caller: str, *, is_worker: bool) -> None:
        async with self.semaphore.turn(caller, is_worker=is_worker):
            self.started.append(name)
            await self._ends[name].wait()

    async def end(self, name: str) -> None:
        self._ends[name].set()
        await asyncio.wait([self.tasks[name]])
        await asyncio.sleep(0)

    async def cancel(self, name: str) -> None:
        self.tasks[name].cancel()
        await asyncio.wait([self.tasks[name]])
        await asyncio.sleep(0)


@contextmanager
def load(semaphore: CallerSemaphore) -> Iterator[Load]:
    running = Load(semaphore)
    try:
        yield running
    finally:
        for task in running.tasks.values():
            task.cancel()


async def test_caller_waits_for_one_turn_only_behind_a_flood() -> None:
    with load(CallerSemaphore()) as requests:
        await requests.send("flood", 100)
        await requests.send("other", 2)
        assert len(requests.started) == MAX_CONCURRENT_HANDOFFS
        for number in range(4):
            await requests.end(f"flood-{number}")
        assert requests.started[MAX_CONCURRENT_HANDOFFS:] == ["flood-8", "other-0", "flood-9", "other-1"]


async def test_worker_starts_immediately_during_a_flood_of_callers() -> None:
    with load(CallerSemaphore()) as requests:
        await requests.send("flood", 100)
        await requests.send("activator", RESERVED_WORKER_HANDOFFS + 1, is_worker=True)
        assert requests.started[MAX_CONCURRENT_HANDOFFS:] == ["activator-0", "activator-1"]
        await requests.end("activator-0")
        assert requests.started[-1] == "activator-2"


async def test_flood_of_workers_does_not_stop_callers() -> None:
    with load(CallerSemaphore()) as requests:
        await requests.send("activator", 100, is_worker=True)
        await requests.send("other", 1)
        assert len(requests.started) == MAX_CONCURRENT_HANDOFFS + RESERVED_WORKER_HANDOFFS
        await requests.end("activator-0")
        await requests.end("activator-1")
        assert "other-0" in requests.started


async def test_full_queue_refuses_only_its_caller() -> None:
    with load(CallerSemaphore(max_queued_per_caller=2)) as requests:
        await requests.send("flood", MAX_CONCURRENT_HANDOFFS + 2)
        with pytest.raises(Overloaded, match="flood has 2 waiting create requests"):
            async with requests.semaphore.turn("flood"):
                pass
        await requests.send("other", 1)
        await requests.end("flood-0")
        await requests.end("flood-1")
        assert "other-0" in requests.started


async def test_cancelled_requests_free_their_places() -> None:
    with load(CallerSemaphore()) as requests:
        await requests.send("one", MAX_CONCURRENT_HANDOFFS + 3)
        await requests.cancel("one-9")  # it waits
        await requests.cancel("one-0")  # it runs
        assert requests.started[-1] == "one-8"
        requests.tasks["one-1"].cancel()
        requests.tasks["one-10"].cancel()  # its turn may start while it is cancelled
        await asyncio.wait([requests.tasks["one-1"], requests.tasks["one-10"]])
        await requests.send("two", 2)
        assert requests.started[-1] == "two-0"
        await requests.end("one-2")
        assert requests.started[-1] == "two-1"
