"""Work that goes on after the answer."""

import asyncio
from collections.abc import Callable

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.errors import KubeUnreachable
from gpu_runtime.runtime_api.operations.background_queue import BackgroundQueue
from tests.unit.kube.fake_time import now, on_fake_time
from tests.unit.runtime_api.runtime_api_objects import operation


class RecordingDriver:
    """Remembers what it was given, and takes its time."""

    def __init__(self, meanwhile: Callable[[Operation], None] | None = None, seconds: float = 0) -> None:
        self.begun: list[Operation] = []
        self.ended: list[Operation] = []
        self._meanwhile = meanwhile
        self._seconds = seconds

    async def resume(self, given: Operation) -> Operation:
        self.begun.append(given)
        if self._meanwhile:
            self._meanwhile(given)
        await asyncio.sleep(self._seconds)
        self.ended.append(given)
        return given


def background_queue(driving: RecordingDriver, **limits: int) -> BackgroundQueue:
    return BackgroundQueue({OperationType.SEED_STOCK: driving}, **limits)


@on_fake_time
async def test_running_operation_finishes_within_the_shutdown_timeout() -> None:
    driving, stopping = RecordingDriver(lambda _: stopping.set(), seconds=5), asyncio.Event()
    crew = background_queue(driving)
    crew.enqueue(operation())
    await crew.run(stopping, grace_seconds=10)
    assert driving.ended == [operation()]
    assert now() == 1005


@on_fake_time
async def test_operation_that_exceeds_the_shutdown_timeout_is_cancelled() -> None:
    driving, stopping = RecordingDriver(lambda _: stopping.set(), seconds=3600), asyncio.Event()
    crew = background_queue(driving)
    crew.enqueue(operation())
    await crew.run(stopping, grace_seconds=10)
    assert (len(driving.begun), len(driving.ended)) == (1, 0)
    assert now() == 1010


@on_fake_time
async def test_operation_enqueued_twice_runs_once() -> None:
    driving, stopping = RecordingDriver(lambda _: stopping.set(), seconds=1), asyncio.Event()
    crew = background_queue(driving)
    crew.enqueue(operation())
    crew.enqueue(operation())
    await crew.run(stopping, grace_seconds=10)
    assert len(driving.begun) == 1


@on_fake_time
async def test_full_queue_drops_new_operations() -> None:
    driving = RecordingDriver()
    crew = background_queue(driving, waiting=0)
    crew.enqueue(operation())
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(crew.run(stopping, grace_seconds=1))
        await asyncio.sleep(5)
        stopping.set()
    assert driving.begun == []


@pytest.mark.parametrize(
    "failure", [KubeUnreachable("no answer", sent=True), Unavailable("not now"), RuntimeError("a bug")], ids=repr
)
def test_failed_operation_does_not_stop_the_queue(failure: Exception) -> None:
    stopping = asyncio.Event()
    first, second = operation(), operation(OperationType.CREATE_STOCK_POOL, uid="another")

    def fail(_: Operation) -> None:
        raise failure

    last = RecordingDriver(lambda _: stopping.set())

    @on_fake_time
    async def body() -> None:
        crew = BackgroundQueue(
            {OperationType.SEED_STOCK: RecordingDriver(fail), OperationType.CREATE_STOCK_POOL: last},
            max_concurrent_operations=1,
        )
        crew.enqueue(first)
        crew.enqueue(second)
        await crew.run(stopping, grace_seconds=1)

    body()
    assert last.ended == [second]
