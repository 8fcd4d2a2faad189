"""Work that is executed in the background after a response."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.process.background_queue import BackgroundQueue
from tests.unit.kube.fake_time import now, on_fake_time

NAMES = [f"work-{number}" for number in range(10)]


class Work:
    """Work that takes some seconds and is recorded afterwards."""

    def __init__(self, seconds: float = 1, on_start: Callable[[str], None] = lambda _: None) -> None:
        self.started: list[str] = []
        self.finished: list[str] = []
        self._seconds = seconds
        self._on_start = on_start

    def enqueue(self, queue: BackgroundQueue, *names: str) -> None:
        for name in names:
            queue.enqueue(name, self._run(name), {})

    def _run(self, name: str) -> Callable[[], Awaitable[None]]:
        async def run() -> None:
            self.started.append(name)
            self._on_start(name)
            await asyncio.sleep(self._seconds)
            self.finished.append(name)

        return run


def stopped_event() -> asyncio.Event:
    stopping = asyncio.Event()
    stopping.set()
    return stopping


@on_fake_time
async def test_queued_work_finishes_within_the_shutdown_timeout() -> None:
    work, queue = Work(), BackgroundQueue(max_concurrent=2)
    work.enqueue(queue, *NAMES)
    await queue.run(stopped_event(), grace_seconds=10)
    assert work.finished == NAMES
    assert now() == 1005


@on_fake_time
async def test_work_after_the_shutdown_timeout_is_cancelled() -> None:
    work, queue = Work(), BackgroundQueue(max_concurrent=2)
    work.enqueue(queue, *NAMES)
    await queue.run(stopped_event(), grace_seconds=2.5)
    assert (work.started, work.finished) == (NAMES[:6], NAMES[:4])
    assert now() == 1002.5


@on_fake_time
async def test_running_work_finishes_within_the_shutdown_timeout() -> None:
    stopping = asyncio.Event()
    work, queue = Work(seconds=5, on_start=lambda _: stopping.set()), BackgroundQueue()
    work.enqueue(queue, "only")
    await queue.run(stopping, grace_seconds=10)
    assert work.finished == ["only"]
    assert now() == 1005


@on_fake_time
async def test_work_enqueued_twice_runs_once_until_it_has_finished() -> None:
    work, queue, stopping = Work(), BackgroundQueue(), asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.run(stopping, grace_seconds=10))
        work.enqueue(queue, "same", "same")
        await asyncio.sleep(0.5)
        work.enqueue(queue, "same")
        await asyncio.sleep(5)
        assert work.started == ["same"]
        work.enqueue(queue, "same")
        stopping.set()
    assert work.finished == ["same", "same"]


@on_fake_time
async def test_full_queue_drops_new_work() -> None:
    work, queue = Work(), BackgroundQueue(max_queued=3)
    work.enqueue(queue, *NAMES)
    await queue.run(stopped_event(), grace_seconds=10)
    assert work.finished == NAMES[:3]


@pytest.mark.parametrize(
    "failure", [KubeUnreachable("no answer", sent=True), Unavailable("not now"), RuntimeError("unexpected")], ids=repr
)
def test_failed_work_does_not_stop_the_queue(failure: Exception) -> None:
    def fail(name: str) -> None:
        if name == NAMES[0]:
            raise failure

    @on_fake_time
    async def body() -> None:
        work, queue = Work(on_start=fail), BackgroundQueue(max_concurrent=1)
        work.enqueue(queue, *NAMES)
        await queue.run(stopped_event(), grace_seconds=20)
        assert work.finished == NAMES[1:]
        assert queue.pending_keys == set()

    body()
