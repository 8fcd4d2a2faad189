"""What one operation that cannot be worked on means for the others, and for the process."""

from types import SimpleNamespace
from typing import Any, cast

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.sweep import Sweep
from gpu_runtime.runtime_api.settings import Operations
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


async def test_a_bug_that_one_operation_meets_stops_neither_the_others_nor_the_sweep() -> None:
    left = [operation(uid=f"uid-{number}") for number in range(3)]
    holding, empty = SimpleNamespace(all=lambda: left), SimpleNamespace(all=list, by=lambda *_: [])
    stores = {"pending": holding, "units": empty, "storages": empty, "pools": empty}
    caches = SimpleNamespace(**{name: SimpleNamespace(store=store) for name, store in stores.items()})

    async def find(_operation_id: str) -> Operation:
        return operation()

    ledger, driving = SimpleNamespace(find=find, committed=set), Driving()
    sweep = Sweep(
        cast(Any, None),
        cast(Any, caches),
        cast(Any, ledger),
        {OperationType.SEED_STOCK: driving},
        settings=Operations(),
        clock=Time(),
    )
    await sweep.once()  # from now on they are known
    await sweep.once()
    assert driving.met == 3
