"""A key is looked at once at a time, soon, in order, and later each time that it fails."""

import asyncio
import time

import pytest
import uvloop

from gpu_runtime.kube.retry import Backoff
from gpu_runtime.kube.workqueue import QueueClosed, WorkQueue
from tests.unit.kube.fake_time import now, on_fake_time

STEADY = Backoff(first=1.0, longest=8.0, spread=0.0)


class Recorded:
    def __init__(self) -> None:
        self.depths: list[int] = []
        self.waits: list[float] = []
        self.retries = 0

    def depth(self, waiting: int) -> None:
        self.depths.append(waiting)

    def waited(self, seconds: float) -> None:
        self.waits.append(seconds)

    def retried(self) -> None:
        self.retries += 1


@on_fake_time
async def test_a_key_added_often_is_taken_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    for _ in range(3):
        queue.add("a")
    queue.add("b")
    assert [await queue.take(), await queue.take()] == ["a", "b"]
    assert len(queue) == 0


@on_fake_time
async def test_a_key_added_while_it_is_worked_on_waits_for_its_worker_and_is_taken_again() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    assert await queue.take() == "a"
    queue.add("a")
    queue.add("a")
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await queue.take()
    queue.done("a")
    assert await queue.take() == "a"
    queue.done("a")
    assert len(queue) == 0


@on_fake_time
async def test_keys_are_taken_in_the_order_in_which_they_became_due() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("late", 3)
    queue.add_after("early", 1)
    queue.add("now")
    started, order = now(), []
    for _ in range(3):
        key = await queue.take()
        order.append((key, now() - started))
    assert order == [("now", 0), ("early", 1), ("late", 3)]


@on_fake_time
async def test_the_earliest_wish_for_a_key_counts_and_only_once() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add_after("a", 10)
    queue.add_after("a", 2)
    queue.add_after("a", 5)
    started = now()
    await queue.take()
    queue.done("a")
    assert now() - started == 2
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(60):
            await queue.take()


@on_fake_time
async def test_a_busy_key_does_not_starve_the_others() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("busy")
    taken = []
    queue.add("quiet")
    for _ in range(4):
        key = await queue.take()
        taken.append(key)
        if key == "busy":
            queue.add("busy")
        queue.done(key)
        if len(taken) == 4:
            break
    assert taken[:3] == ["busy", "quiet", "busy"]


@on_fake_time
async def test_failures_of_a_key_wait_longer_each_time_up_to_a_limit_and_are_forgotten_after_success() -> None:
    queue: WorkQueue[str] = WorkQueue(STEADY)
    assert [queue.retry("a") for _ in range(6)] == [1, 2, 4, 8, 8, 8]
    assert queue.retry("b") == 1, "each key has its own count"
    assert queue.failures("a") == 6
    queue.forget("a")
    assert queue.failures("a") == 0
    assert queue.retry("a") == 1


@on_fake_time
async def test_news_about_a_failing_key_are_looked_at_without_waiting() -> None:
    queue: WorkQueue[str] = WorkQueue(STEADY)
    queue.retry("a")
    queue.add("a")
    started = now()
    await queue.take()
    assert now() == started


@on_fake_time
async def test_a_closed_queue_hands_out_nothing_and_lets_every_worker_go() -> None:
    queue: WorkQueue[str] = WorkQueue()
    gone = 0

    async def worker() -> None:
        nonlocal gone
        with pytest.raises(QueueClosed):
            await queue.take()
        gone += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(worker())
        await asyncio.sleep(0)
        queue.add_after("later", 1)
        queue.close()
        queue.close()
        queue.add("a")
        queue.add_after("b", 1)
    assert gone == 3
    assert len(queue) == 0


@on_fake_time
async def test_what_waits_at_the_close_is_dropped() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("a")
    queue.close()
    with pytest.raises(QueueClosed):
        await queue.take()


@on_fake_time
async def test_a_cancelled_worker_takes_no_key_along() -> None:
    queue: WorkQueue[str] = WorkQueue()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(1):
            await queue.take()
    queue.add("a")
    assert await queue.take() == "a"


@on_fake_time
async def test_depth_waits_and_retries_are_measured() -> None:
    seen = Recorded()
    queue: WorkQueue[str] = WorkQueue(STEADY, seen)
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(3)
    await queue.take()
    queue.retry("a")
    assert seen.depths == [1, 2, 1]
    assert seen.waits == [3]
    assert seen.retries == 1


@on_fake_time
async def test_ten_thousand_delayed_keys_all_come_in_order() -> None:
    queue: WorkQueue[int] = WorkQueue()
    for number in range(10_000):
        queue.add_after(number, (number * 7919) % 10_000 / 100)
    taken = [await queue.take() for _ in range(10_000)]
    assert taken == sorted(range(10_000), key=lambda number: ((number * 7919) % 10_000, number))


def test_a_key_whose_time_has_passed_before_its_timer_is_set_is_not_lost() -> None:
    """On the event loop that the processes have: that of the standard library has no such case."""

    async def busy() -> str:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("due", 0.01)
        time.sleep(0.03)  # noqa: ASYNC251 - the loop has something else to do, and comes too late
        queue.add_after("later", 60)
        async with asyncio.timeout(30):
            return await queue.take()

    assert uvloop.run(busy()) == "due"
