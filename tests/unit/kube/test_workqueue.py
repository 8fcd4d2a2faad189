"""The workqueue returns a key once at a time, in due order, and with a growing delay after each failure."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import fields

import pytest
import uvloop

from gpu_runtime.backoff import Backoff
from gpu_runtime.kube.metrics import WorkQueueMetrics
from gpu_runtime.kube.workqueue import WorkQueue, WorkQueueShutDown
from tests.unit.kube.fake_time import now, on_fake_time

STEADY = Backoff(initial_seconds=1.0, max_seconds=8.0, jitter=0.0)


class Recorder:
    """Records what a metric receives."""

    def __init__(self) -> None:
        self.values: list[float] = []

    def set(self, value: float) -> None:
        self.values.append(value)

    def observe(self, value: float) -> None:
        self.values.append(value)

    def inc(self) -> None:
        self.values.append(1)

    def set_function(self, function: Callable[[], float]) -> None: ...


class RecordedMetrics(WorkQueueMetrics):
    def __init__(self) -> None:
        for each in fields(WorkQueueMetrics):
            object.__setattr__(self, each.name, Recorder())

    def values(self, name: str) -> list[float]:
        recorder: Recorder = getattr(self, name)
        return recorder.values


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
async def test_key_that_is_always_readded_does_not_starve_the_others() -> None:
    queue: WorkQueue[str] = WorkQueue()
    queue.add("busy")
    returned = []
    queue.add("idle")
    for _ in range(4):
        key = await queue.get()
        returned.append(key)
        if key == "busy":
            queue.add("busy")
        queue.done(key)
        if len(returned) == 4:
            break
    assert returned[:3] == ["busy", "idle", "busy"]


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
    stopped = 0

    async def worker() -> None:
        nonlocal stopped
        with pytest.raises(WorkQueueShutDown):
            await queue.get()
        stopped += 1

    async with asyncio.TaskGroup() as tasks:
        for _ in range(3):
            tasks.create_task(worker())
        await asyncio.sleep(0)
        queue.add_after("later", 1)
        queue.shut_down()
        queue.shut_down()
        queue.add("a")
        queue.add_after("b", 1)
    assert stopped == 3
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
async def test_depth_queue_duration_and_retries_are_measured() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics, clock=now)
    queue.add("a")
    queue.add("b")
    await asyncio.sleep(3)
    await queue.get()
    queue.add_rate_limited("a")
    assert metrics.values("depth") == [1, 2, 1]
    assert metrics.values("queue_duration") == [3]
    assert len(metrics.values("retries")) == 1


@on_fake_time
async def test_depth_and_queue_duration_include_a_key_that_is_added_during_processing() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics, clock=now)
    queue.add("a")
    await queue.get()
    queue.add("a")
    assert metrics.values("depth") == [1, 0, 1]
    await asyncio.sleep(5)
    queue.done("a")
    await asyncio.sleep(2)
    await queue.get()
    assert metrics.values("queue_duration") == [0, 7], "the clock starts at the add, not at the done"
    assert metrics.values("depth") == [1, 0, 1, 0]


@on_fake_time
async def test_adds_count_only_keys_that_are_not_waiting() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics)
    queue.add("a")
    queue.add("a")
    assert len(metrics.values("adds")) == 1
    await queue.get()
    queue.add("a")
    queue.add("a")
    assert len(metrics.values("adds")) == 2, "one add during the processing counts"
    queue.done("a")
    assert len(metrics.values("adds")) == 2, "the requeue after done is not another add"
    queue.add_after("b", 1)
    assert len(metrics.values("adds")) == 2
    await asyncio.sleep(1)
    assert len(metrics.values("adds")) == 3, "a delayed key counts when it becomes due"
    queue.shut_down()
    queue.add("c")
    assert len(metrics.values("adds")) == 3


@on_fake_time
async def test_every_delayed_add_counts_as_a_retry() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics)
    queue.add("a")
    assert len(metrics.values("retries")) == 0
    queue.add_after("a", 0)
    queue.add_after("a", 60)
    queue.add_rate_limited("a")
    assert len(metrics.values("retries")) == 3
    queue.shut_down()
    queue.add_after("a", 1)
    assert len(metrics.values("retries")) == 3


@on_fake_time
async def test_work_duration_is_the_time_from_get_to_done() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics, clock=now)
    queue.add("a")
    await asyncio.sleep(3)
    await queue.get()
    await asyncio.sleep(4)
    assert metrics.values("work_duration") == []
    queue.done("a")
    assert metrics.values("work_duration") == [4]


@on_fake_time
async def test_unfinished_work_is_the_sum_and_the_longest_is_the_oldest_of_the_keys_in_progress() -> None:
    queue: WorkQueue[str] = WorkQueue(STEADY, clock=now)
    assert (queue.unfinished_work_seconds(), queue.longest_running_seconds()) == (0, 0)
    queue.add("a")
    queue.add("b")
    await queue.get()
    await asyncio.sleep(10)
    await queue.get()
    await asyncio.sleep(5)
    assert (queue.unfinished_work_seconds(), queue.longest_running_seconds()) == (20, 15)
    queue.done("a")
    assert (queue.unfinished_work_seconds(), queue.longest_running_seconds()) == (5, 5)
    queue.done("b")
    assert (queue.unfinished_work_seconds(), queue.longest_running_seconds()) == (0, 0)


@on_fake_time
async def test_shut_down_queue_has_no_depth() -> None:
    metrics = RecordedMetrics()
    queue: WorkQueue[str] = WorkQueue(STEADY, metrics)
    queue.add("a")
    queue.add("b")
    await queue.get()
    queue.add("a")
    queue.shut_down()
    assert metrics.values("depth")[-1] == 0
    queue.done("a")
    assert len(queue) == 0


@on_fake_time
async def test_ten_thousand_delayed_keys_are_returned_in_order() -> None:
    queue: WorkQueue[int] = WorkQueue()
    for number in range(10_000):
        queue.add_after(number, (number * 7919) % 10_000 / 100)
    returned = [await queue.get() for _ in range(10_000)]
    assert returned == sorted(range(10_000), key=lambda number: ((number * 7919) % 10_000, number))


def test_key_that_is_due_before_its_timer_is_set_is_not_lost() -> None:
    """On uvloop, which the processes use. The event loop of the standard library does not have this case."""

    async def busy() -> str:
        queue: WorkQueue[str] = WorkQueue()
        queue.add_after("due", 0.01)
        time.sleep(0.03)  # noqa: ASYNC251 - the event loop is busy and runs the timer too late

        queue.add_after("later", 60)
        async with asyncio.timeout(30):
            return await queue.get()

    assert uvloop.run(busy()) == "due"
