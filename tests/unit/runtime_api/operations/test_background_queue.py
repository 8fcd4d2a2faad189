"""Operations that are executed in the background after their response."""

import asyncio
from collections.abc import Callable

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.runtime_api.operations.background_queue import BackgroundQueue
from tests.unit.kube.fake_time import now, on_fake_time
from tests.unit.runtime_api.runtime_api_objects import operation


class RecordingExecutor:
    """An executor that records its operations, and takes `seconds` for each."""

    def __init__(self, on_start: Callable[[Operation], None] | None = None, seconds: float = 0) -> None:
        self.started: list[Operation] = []
        self.finished: list[Operation] = []
        self._on_start = on_start
        self._seconds = seconds

    async def resume(self, operation: Operation) -> Operation:
        self.started.append(operation)
        if self._on_start:
            self._on_start(operation)
        await asyncio.sleep(self._seconds)
        self.finished.append(operation)
        return operation


def background_queue(executor: RecordingExecutor, **limits: int) -> BackgroundQueue:
    return BackgroundQueue({OperationType.SEED_STOCK: executor}, **limits)


@on_fake_time
async def test_running_operation_finishes_within_the_shutdown_timeout() -> None:
    executor, stopping = RecordingExecutor(lambda _: stopping.set(), seconds=5), asyncio.Event()
    queue = background_queue(executor)
    queue.enqueue(operation())
    await queue.run(stopping, grace_seconds=10)
    assert executor.finished == [operation()]
    assert now() == 1005


@on_fake_time
async def test_operation_that_exceeds_the_shutdown_timeout_is_cancelled() -> None:
    executor, stopping = RecordingExecutor(lambda _: stopping.set(), seconds=3600), asyncio.Event()
    queue = background_queue(executor)
    queue.enqueue(operation())
    await queue.run(stopping, grace_seconds=10)
    assert (len(executor.started), len(executor.finished)) == (1, 0)
    assert now() == 1010


@on_fake_time
async def test_operation_enqueued_twice_runs_once() -> None:
    executor, stopping = RecordingExecutor(lambda _: stopping.set(), seconds=1), asyncio.Event()
    queue = background_queue(executor)
    queue.enqueue(operation())
    queue.enqueue(operation())
    await queue.run(stopping, grace_seconds=10)
    assert len(executor.started) == 1


@on_fake_time
async def test_full_queue_drops_new_operations() -> None:
    executor = RecordingExecutor()
    queue = background_queue(executor, max_queued=0)
    queue.enqueue(operation())
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(queue.run(stopping, grace_seconds=1))
        await asyncio.sleep(5)
        stopping.set()
    assert executor.started == []


@pytest.mark.parametrize(
    "failure", [KubeUnreachable("no answer", sent=True), Unavailable("not now"), RuntimeError("unexpected")], ids=repr
)
def test_failed_operation_does_not_stop_the_queue(failure: Exception) -> None:
    stopping = asyncio.Event()
    first, second = operation(), operation(OperationType.CREATE_STOCK_POOL, uid="another")

    def fail(_: Operation) -> None:
        raise failure

    last = RecordingExecutor(lambda _: stopping.set())

    @on_fake_time
    async def body() -> None:
        queue = BackgroundQueue(
            {OperationType.SEED_STOCK: RecordingExecutor(fail), OperationType.CREATE_STOCK_POOL: last},
            max_concurrent_operations=1,
        )
        queue.enqueue(first)
        queue.enqueue(second)
        await queue.run(stopping, grace_seconds=1)

    body()
    assert last.finished == [second]
