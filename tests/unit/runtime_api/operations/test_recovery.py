"""An operation that cannot be resumed stops neither the recovery of others nor the process."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.recorded_requests import RecordedSeedRequest, recorded_request
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.operations.drive import OperationExecutor, OperationRunner
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.settings import OperationSettings
from tests.unit.runtime_api.runtime_api_objects import operation as new_operation


class SteppingClock(SystemClock):
    """Advances by a minute with every call."""

    def __init__(self) -> None:
        self.elapsed_seconds = 0.0

    def monotonic(self) -> float:
        self.elapsed_seconds += 60
        return self.elapsed_seconds


class FailingOnceExecutor:
    """Fails on its first operation, and finishes all others."""

    def __init__(self) -> None:
        self.resumed_count = 0

    async def resume(self, operation: Operation) -> Operation:
        self.resumed_count += 1
        if self.resumed_count == 1:
            raise ValueError("unexpected")
        return operation


def recovery_of(operations: list[Operation], executor: OperationExecutor) -> OperationRecovery:
    """The recovery of a replica whose cache has these unfinished operations."""
    unfinished, empty = SimpleNamespace(all=lambda: operations), SimpleNamespace(all=list, by_index=lambda *_: [])
    stores = {"unfinished_operations": unfinished, "units": empty, "storages": empty, "pools": empty}
    informers = SimpleNamespace(**{name: SimpleNamespace(store=store) for name, store in stores.items()})
    informers.claimed_pods = list

    async def find(_operation_id: str) -> Operation:
        return operations[0]

    store = cast(Any, SimpleNamespace(find=find, pop_committed_uids=set))
    return OperationRecovery(
        cast(Any, None),
        cast(Any, informers),
        OperationRunner(store, {OperationType.SEED_STOCK: executor}, BackgroundQueue()),
        settings=OperationSettings(),
        clock=SteppingClock(),
    )


async def test_exception_in_one_operation_does_not_stop_recovery() -> None:
    executor = FailingOnceExecutor()
    recovery = recovery_of([new_operation(uid=f"uid-{number}") for number in range(3)], executor)
    await recovery.run_once()  # the first run only records their versions
    await recovery.run_once()
    assert executor.resumed_count == 3


class DecodingExecutor:
    """Needs the recorded request."""

    async def resume(self, operation: Operation) -> Operation:
        recorded_request(operation, RecordedSeedRequest)
        return operation


@pytest.mark.parametrize("request_", ["", "not JSON", '{"replicas":3}', "[" * 5000])
async def test_undecodable_operation_is_logged_in_one_line(request_: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    recovery = recovery_of([new_operation(request=request_)], DecodingExecutor())
    await recovery.run_once()  # the first run only records its version
    caplog.clear()
    await recovery.run_once()
    (_, line) = caplog.records
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert "the recorded request of operation one cannot be decoded" in str(vars(line)["error"])
