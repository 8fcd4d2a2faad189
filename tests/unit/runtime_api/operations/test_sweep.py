"""What one operation that cannot be worked on means for the others, and for the process."""

import logging
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.recovery import Sweep
from gpu_runtime.runtime_api.operations.request_codec import recorded
from gpu_runtime.runtime_api.operations.state_machine import Driver
from gpu_runtime.runtime_api.settings import Operations
from gpu_runtime.runtime_api.stock.stock_manifests import SEED_REQUEST
from tests.unit.runtime_api.objects import operation


class Time(SystemClock):
    """Every look is a minute after the last one."""

    def __init__(self) -> None:
        self.passed = 0.0

    def monotonic(self) -> float:
        self.passed += 60
        return self.passed


class Driving:
    """Cannot read the first operation that it is given, and ends all others."""

    def __init__(self) -> None:
        self.met = 0

    async def carry(self, given: Operation) -> Operation:
        self.met += 1
        if self.met == 1:
            raise ValueError("its request is of a newer version")
        return given


def sweeping(left: list[Operation], driver: Driver) -> Sweep:
    """Over operations that were left, each of which is driven so."""
    holding, empty = SimpleNamespace(all=lambda: left), SimpleNamespace(all=list, by=lambda *_: [])
    stores = {"pending": holding, "units": empty, "storages": empty, "pools": empty}
    caches = SimpleNamespace(**{name: SimpleNamespace(store=store) for name, store in stores.items()})

    async def find(_operation_id: str) -> Operation:
        return left[0]

    return Sweep(
        cast(Any, None),
        cast(Any, caches),
        cast(Any, SimpleNamespace(find=find, committed=set)),
        {OperationType.SEED_STOCK: driver},
        settings=Operations(),
        clock=Time(),
    )


async def test_a_bug_that_one_operation_meets_stops_neither_the_others_nor_the_sweep() -> None:
    driving = Driving()
    sweep = sweeping([operation(uid=f"uid-{number}") for number in range(3)], driving)
    await sweep.once()  # from now on they are known
    await sweep.once()
    assert driving.met == 3


class Reading:
    """Cannot go on without what was asked."""

    async def carry(self, given: Operation) -> Operation:
        recorded(given, SEED_REQUEST)
        return given


@pytest.mark.parametrize("request_", ["", "no JSON", '{"replicas":3}', "[" * 5000])
async def test_an_operation_whose_request_cannot_be_read_is_said_in_one_line(
    request_: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    sweep = sweeping([operation(request=request_)], Reading())
    await sweep.once()  # from now on it is known
    caplog.clear()
    await sweep.once()
    (_, line) = caplog.records
    assert (line.levelname, line.exc_info) == ("INFO", None)
    assert "the request that operation one recorded cannot be read" in str(vars(line)["error"])
