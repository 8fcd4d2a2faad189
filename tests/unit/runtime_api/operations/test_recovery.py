"""What one operation that cannot be worked on means for the others, and for the process."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.operations.request_codec import decode_request
from gpu_runtime.runtime_api.operations.state_machine import OperationExecutor
from gpu_runtime.runtime_api.settings import OperationSettings
from gpu_runtime.runtime_api.stock.stock_manifests import SEED_REQUEST_DECODER
from tests.unit.runtime_api.runtime_api_objects import operation


class SteppingClock(SystemClock):
    """Every look is a minute after the last one."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        self.passed += 60
        return self.passed


class RecordingDriver:
    """Cannot read the first operation that it is given, and ends all others."""

    def __init__(self) -> None:
        self.met = 0

    async def resume(self, given: Operation) -> Operation:
        self.met += 1
        if self.met == 1:
            raise ValueError("its request is of a newer version")
        return given


def recovery_of(left: list[Operation], driver: OperationExecutor) -> OperationRecovery:
    """Over operations that were left, each of which is driven so."""
    holding, empty = SimpleNamespace(all=lambda: left), SimpleNamespace(all=list, by=lambda *_: [])
    stores = {"pending": holding, "units": empty, "storages": empty, "pools": empty}
    caches = SimpleNamespace(**{name: SimpleNamespace(store=store) for name, store in stores.items()})

    async def find(_operation_id: str) -> Operation:
        return left[0]

    return OperationRecovery(
        cast(Any, None),
        cast(Any, caches),
        cast(Any, SimpleNamespace(find=find, committed=set)),
        {OperationType.SEED_STOCK: driver},
        settings=OperationSettings(),
        clock=SteppingClock(),
    )


async def test_exception_in_one_operation_does_not_stop_recovery() -> None:
    driving = RecordingDriver()
    sweep = recovery_of([operation(uid=f"uid-{number}") for number in range(3)], driving)
    await sweep.run_once()  # from now on they are known
    await sweep.run_once()
    assert driving.met == 3


class DecodingDriver:
    """Cannot go on without what was asked."""

    async def resume(self, given: Operation) -> Operation:
        decode_request(given, SEED_REQUEST_DECODER)
        return given


@pytest.mark.parametrize("request_", ["", "no JSON", '{"replicas":3}', "[" * 5000])
async def test_undecodable_operation_is_logged_in_one_line(request_: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    sweep = recovery_of([operation(request=request_)], DecodingDriver())
    await sweep.run_once()  # from now on it is known
    caplog.clear()
    await sweep.run_once()
    (_, line) = caplog.records
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert "the request that operation one recorded cannot be read" in str(vars(line)["error"])
