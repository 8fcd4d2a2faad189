"""Work that is executed in the background after a response: operations, and deletions of consumed stock."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import ApiStatus, KubeConflict, KubeNotFound, KubeUnreachable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.runtime_api.live_objects import delete_this
from gpu_runtime.runtime_api.operations.drive import OperationExecutor, OperationRunner
from tests.unit.kube.fake_time import now, on_fake_time
from tests.unit.runtime_api.runtime_api_objects import operation, unit

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


class RecordingExecutor:
    def __init__(self) -> None:
        self.resumed: list[Operation] = []

    async def resume(self, operation: Operation) -> Operation:
        self.resumed.append(operation)
        return operation


@on_fake_time
async def test_enqueued_operation_is_resumed_by_the_executor_of_its_type() -> None:
    seeds, pools = RecordingExecutor(), RecordingExecutor()
    executors: dict[OperationType, OperationExecutor] = {
        OperationType.SEED_STOCK: seeds,
        OperationType.CREATE_STOCK_POOL: pools,
    }
    runner = OperationRunner(cast(Any, None), executors, BackgroundQueue())
    seed, pool = operation(), operation(OperationType.CREATE_STOCK_POOL, uid="another")
    runner.enqueue(seed)
    runner.enqueue(seed)
    runner.enqueue(pool)
    await runner.queue.run(stopped_event(), grace_seconds=1)
    assert (seeds.resumed, pools.resumed) == ([seed], [pool])


class FakeDeletions:
    """A client whose deletions fail, or succeed if the failure is None."""

    def __init__(self, failure: Exception | None) -> None:
        self._failure = failure
        self.deleted_uids: list[str] = []

    def with_options(self, **_: Any) -> "FakeDeletions":
        return self

    async def delete(self, _resource: Any, _key: ObjectKey, *, uid: str) -> None:
        self.deleted_uids.append(uid)
        if self._failure is not None:
            raise self._failure


@pytest.mark.parametrize(
    "failure",
    [None, KubeNotFound(ApiStatus(code=404, message="none")), KubeConflict(ApiStatus(code=409, message="other UID"))],
    ids=["deleted", "already deleted", "another object has the name"],
)
async def test_deleted_object_disappears_from_the_cache(failure: Exception | None) -> None:
    client = FakeDeletions(failure)
    informer = Informer(cast(KubeClient, client), GPU_UNITS)
    informer.store.put(unit("stock-1"))
    await delete_this(cast(KubeClient, client), informer, ObjectKey("runtime-stock", "stock-1"), "")
    assert (client.deleted_uids, informer.store.all()) == ([""], [])


async def test_object_stays_cached_if_its_deletion_fails() -> None:
    client = FakeDeletions(KubeUnreachable("no answer", sent=True))
    informer = Informer(cast(KubeClient, client), GPU_UNITS)
    informer.store.put(unit("stock-1"))
    with pytest.raises(KubeUnreachable):
        await delete_this(cast(KubeClient, client), informer, ObjectKey("runtime-stock", "stock-1"), "")
    assert len(informer.store.all()) == 1
