"""A key is looked at once at a time, soon, in order, and later each time that it fails."""

import asyncio
import time

import pytest
import uvloop

from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.workqueue import WorkQueue, WorkQueueShutDown
from tests.unit.kube.fake_time import now, on_fake_time

STEADY = Backoff(initial_seconds=1.0, max_seconds=8.0, jitter=0.0)


class Recorded:
    def __init__(self) -> None:
        self.depths: list[int] = []
        self.waits: list[float] = []
        self.retries = 0

    def set_depth(self, waiting: int) -> None:
        self.depths.append(waiting)

    def observe_queue_duration(self, seconds: float) -> None:
        self.waits.append(seconds)

    def count_retry(self) -> None:
        self.retries += 1


@on_fake_time
async def test_key_added_repeatedly_is_returned_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    assert [await queue.get(), await queue.get()] == ["a", "b"]
    assert len(queue) == 0


@on_fake_time
async def test_key_added_during_processing_is_requeued_after_done() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.get() == "a"
    queue.add("a")
    queue.add("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await queue.get()
    queue.done("a")
    assert await queue.get() == "a"
    queue.done("a")
    assert len(queue) == 0


@on_fake_time
async def test_keys_are_returned_in_due_order() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 3)
    queue.add_after("early", 1)
    queue.add("now")
    started, order = now(), []
    for _ in range(3):
        key = await queue.get()
        order.append((key, now() - started))
    assert order == [("now", 0), ("early", 1), ("late", 3)]


@on_fake_time
async def test_earliest_delay_of_a_key_wins() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 5)
    started = now()
    await queue.get()
    queue.done("a")
    assert now() - started == 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await queue.get()


@on_fake_time
async def test_a_busy_key_does_not_starve_the_others() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("busy")
    taken = []
    queue.add("quiet")
    for _ in range(4):
        key = await queue.get()
        taken.append(key)
        if key == "busy":
            queue.add("busy")
        queue.done(key)
        if len(taken) == 4:
            break
    assert taken[:3] == ["busy", "quiet", "busy"]


@on_fake_time
async def test_rate_limited_delay_grows_per_key_and_resets_after_success() -> None:
    queue: WorkQueue[str] = WorkQueue(STEADY)
    assert [queue.add_rate_limited("a") for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert queue.add_rate_limited("b") == 1, "each key has its own count"
    assert queue.num_requeues("a") == 6
    queue.forget("a")
    assert queue.num_requeues("a") == 0
    assert queue.add_rate_limited("a") == 1


@on_fake_time
async def test_add_of_a_backed_off_key_is_immediate() -> None:
    queue: WorkQueue[str] = WorkQueue(STEADY)
    queue.add_rate_limited("a")
    queue.add("a")
    started = now()
    await queue.get()
    assert now() == started


@on_fake_time
async def test_shut_down_queue_unblocks_every_waiting_get() -> None:
    queue: WorkQueue[str] = WorkQueue()
    gone = 0

    async def worker() -> None:
        nonlocal gone
        with pytest.raises(WorkQueueShutDown):
            await queue.get()
        gone += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(worker())
        await asyncio.sleep(0)
        queue.add_after("later", 1)
        queue.shut_down()
        queue.shut_down()
        queue.add("a")
        queue.add_after("b", 1)
    assert gone == 3
    assert len(queue) == 0


@on_fake_time
async def test_shut_down_drops_queued_keys() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.shut_down()
    with pytest.raises(WorkQueueShutDown):
        await queue.get()


@on_fake_time
async def test_cancelled_get_loses_no_key() -> None:
    queue: WorkQueue[str] = WorkQueue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await queue.get()
    queue.add("a")
    assert await queue.get() == "a"


@on_fake_time
async def test_depth_waits_and_retries_are_measured() -> None:
    seen = Recorded()
    queue: WorkQueue[str] = WorkQueue(STEADY, seen)
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(3)
    await queue.get()
    queue.add_rate_limited("a")
    assert seen.depths == [1, 2, 1]
    assert seen.waits == [3]
    assert seen.retries == 1


@on_fake_time
async def test_ten_thousand_delayed_keys_are_returned_in_order() -> None:
    queue: WorkQueue[int] = WorkQueue()
    for number in range(10_000):
        queue.add_after(number, (number * 7919) % 10_000 / 100)
    taken = [await queue.get() for _ in range(10_000)]
    assert taken == sorted(range(10_000), key=lambda number: ((number * 7919) % 10_000, number))


def test_key_that_is_due_before_its_timer_is_set_is_not_lost() -> None:
    """On the event loop that the processes have: that of the standard library has no such case."""

    async def busy() -> str:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("due", 0.01)
        time.sleep(0.03)  # noqa: ASYNC251 - the loop has something else to do, and comes too late
        queue.add_after("later", 60)
        async with asyncio.timeout(30):
            return await queue.get()

    assert uvloop.run(busy()) == "due"
