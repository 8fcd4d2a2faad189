"""The drive loop continues after conflicts with the same operation, and never with another one."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from msgspec import structs

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import NoStock, Unavailable
from gpu_runtime.contract.operation_transitions import CreationStarted
from gpu_runtime.kube.errors import ApiStatus, KubeConflict, KubeNotFound
from gpu_runtime.kube.meta import KubeObject, ObjectMeta
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.operations.drive import (
    MAX_CONFLICTS,
    OperationDriver,
    OperationExecutor,
    OperationRunner,
    StaleAttempt,
)
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from tests.unit.kube.fake_time import on_fake_time
from tests.unit.runtime_api.runtime_api_objects import STOCK, operation

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
CONFLICT = KubeConflict(ApiStatus(code=409, message="changed"))
UNIT, SEED = OperationType.CREATE_UNIT, OperationType.SEED_STOCK
DONE = operation(SEED, SUCCEEDED)


class RecordingClock(SystemClock):
    """A clock whose sleeps end immediately and are recorded."""

    def __init__(self) -> None:
        self.sleeps: list[float] = []

    async def sleep(self, seconds: float) -> None:
        self.sleeps.append(seconds)


def driver(current: Operation | None) -> OperationDriver:
    """A driver whose API server has this operation under every operationID."""

    async def get(*_: Any) -> Operation:
        if current is None:
            raise KubeNotFound(ApiStatus(code=404, message="none"))
        return current

    async def merge_patch(*_: Any, **__: Any) -> Operation:
        return await get()

    clock, client = RecordingClock(), cast(Any, SimpleNamespace(get=get, merge_patch=merge_patch))
    return OperationDriver(OperationStore(client, "runtime-system", clock), clock)


@pytest.mark.parametrize("conflict", [CONFLICT, StaleAttempt()], ids=repr)
async def test_operation_is_read_again_after_a_conflict_and_a_delay(conflict: Exception) -> None:
    async def step(_: Operation) -> Operation:
        raise conflict

    driving = driver(DONE)
    assert await driving.drive(operation(SEED, RUNNING), step) == DONE
    assert len(cast(RecordingClock, driving.clock).sleeps) == 1


@pytest.mark.parametrize(
    "found", [None, operation(SEED, SUCCEEDED, uid="of-another-caller")], ids=["evicted", "reused"]
)
async def test_operation_of_another_caller_is_never_driven(found: Operation | None) -> None:
    async def step(_: Operation) -> Operation:
        raise CONFLICT

    with pytest.raises(Unavailable, match="operation one was deleted; send the request again"):
        await driver(found).drive(operation(SEED, RUNNING), step)


async def test_write_to_an_evicted_operation_is_unavailable() -> None:
    with pytest.raises(Unavailable, match="operation one was deleted; send the request again"):
        await driver(None).store.write(operation(SEED, ACCEPTED), CreationStarted())


async def test_endless_conflicts_are_reported_to_the_caller() -> None:
    async def step(_: Operation) -> Operation:
        raise CONFLICT

    driving = driver(operation(SEED, RUNNING))
    with pytest.raises(Unavailable, match="send the same request again"):
        await driving.drive(operation(SEED, RUNNING), step)
    assert len(cast(RecordingClock, driving.clock).sleeps) == MAX_CONFLICTS


class ConflictingExecutor:
    """Records the operations that it resumes. Then none of them can proceed."""

    def __init__(self) -> None:
        self.resumed: list[Operation] = []

    async def resume(self, operation: Operation) -> Operation:
        self.resumed.append(operation)
        raise NoStock("none")


def created(operation_uid: str = "op-uid", **annotations: str) -> KubeObject:
    owner = {Annotation.OPERATION_ID: "one", Annotation.OPERATION_UID: operation_uid}
    return KubeObject(metadata=ObjectMeta(uid="x", annotations=owner | annotations))


IN_PROGRESS = operation(UNIT, RUNNING, stock=STOCK, attempt=1)
SAME_REQUEST = {Annotation.REQUEST_HASH: "0" * 64}
POOL_IN_PROGRESS = operation(OperationType.CREATE_STOCK_POOL, RUNNING)
FINISHED_FIRST: dict[str, tuple[Operation | None, KubeObject, bool]] = {
    "its own operation": (IN_PROGRESS, created(**{Annotation.OPERATION_ATTEMPT: "1"}), True),
    "operation waits for stock": (operation(UNIT, ACCEPTED), created(), False),
    "operation has finished": (operation(UNIT, SUCCEEDED, stock=STOCK, attempt=1), created(), False),
    "operation was evicted": (None, created(), False),
    "operationID used again by another request": (IN_PROGRESS, created("evicted"), False),
    "operationID used again by a seeding": (operation(SEED, ROLLING_BACK), created("evicted"), False),
    "pool that a running operation may adopt": (POOL_IN_PROGRESS, created("evicted", **SAME_REQUEST), True),
    "object without an operation": (IN_PROGRESS, KubeObject(metadata=ObjectMeta(uid="x")), False),
}


@pytest.mark.parametrize(("current", "object_", "resumed"), FINISHED_FIRST.values(), ids=FINISHED_FIRST)
async def test_only_the_own_operation_in_progress_is_finished_before_a_deletion(
    current: Operation | None, object_: KubeObject, resumed: bool
) -> None:
    executor = ConflictingExecutor()
    runner = OperationRunner(driver(current).store, dict.fromkeys(OperationType, executor), BackgroundQueue())
    assert await runner.finish_creator(object_) == ["x"]
    assert bool(executor.resumed) is resumed


class CommittingExecutor:
    async def resume(self, operation: Operation) -> Operation:
        """A user has deleted the first object, so the operation has created another one and commits to it."""
        status = structs.replace(operation.status, state=SUCCEEDED, target_uid="created-again")
        return structs.replace(operation, status=status)


async def test_object_that_the_operation_created_again_is_deleted_as_well() -> None:
    executors = dict.fromkeys(OperationType, CommittingExecutor())
    runner = OperationRunner(driver(IN_PROGRESS).store, executors, BackgroundQueue())
    uids = await runner.finish_creator(created(**{Annotation.OPERATION_ATTEMPT: "1"}))
    assert uids == ["created-again", "x"]


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
    stopped = asyncio.Event()
    stopped.set()
    await runner.queue.run(stopped, grace_seconds=1)
    assert (seeds.resumed, pools.resumed) == ([seed], [pool])
