"""Which workers are made, when others have come since the function was looked at."""

from types import SimpleNamespace
from typing import Any, cast

from gpu_runtime.activator.autoscaler import Create, Observed, WorkerState
from gpu_runtime.activator.function_lister import Functions
from gpu_runtime.activator.reconcile import FunctionReconciler
from gpu_runtime.activator.worker_backoff import Setbacks
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from tests.unit.activator.objects import observed, unit, worker


class Lifecycle:
    """Takes down which workers are asked for."""

    def __init__(self) -> None:
        self.made: list[str] = []

    async def make(self, _function: GPUUnit, name: str, *, cold: bool) -> None:
        assert cold
        self.made.append(name)


def reconciling(lifecycle: Lifecycle, *there: GPUUnit) -> FunctionReconciler:
    functions = Functions(cast(Client, SimpleNamespace(patient=lambda **_: None)), "stock")
    for each in there:
        functions.units.store.put(each)
    anything: Any = None
    return FunctionReconciler(
        functions=functions,
        workers=anything,
        backlog=anything,
        lifecycle=cast(Any, lifecycle),
        nats=anything,
        topology=anything,
        settings=anything,
        metrics=anything,
        clock=anything,
        wall=anything,
        setbacks=Setbacks(Backoff(first=10, longest=100)),
        recorder=anything,
    )


async def made(seen: Observed, count: int, *there: GPUUnit) -> list[str]:
    """The workers that are made once those units are in the cache."""
    lifecycle = Lifecycle()
    await reconciling(lifecycle, *there)._carry_out(seen, Create(count))
    return lifecycle.made


async def test_workers_that_came_since_the_look_are_no_strangers_that_make_room_for_more() -> None:
    seen = observed(9, max_workers=2)
    first, second = (unit(f"f-w{slot}", worker_of="f") for slot in (0, 1))
    assert await made(seen, 2, first, second) == []
    assert await made(seen, 2, first) == ["f-w1"]


async def test_above_the_limit_none_is_made() -> None:
    seen = observed(9, max_workers=1)
    assert await made(seen, 1, *(unit(f"f-w{slot}", worker_of="f") for slot in (0, 1))) == []


async def test_names_of_strangers_make_way_for_higher_ones() -> None:
    seen = observed(9, worker(1), max_workers=3)
    assert await made(seen, 2, unit("f-w0"), unit("f-w1", worker_of="f")) == ["f-w2", "f-w3"]


def test_a_function_that_is_made_again_does_not_wait_for_the_failures_of_its_predecessor() -> None:
    reconciler, function = reconciling(Lifecycle()), Key("units", "f")
    reconciler.setbacks.note(function, [worker(0, WorkerState.BROKEN)], reconciler.workers, 0)
    assert not reconciler.setbacks.over(function, 1)
    reconciler.forget(function)
    assert reconciler.setbacks.over(function, 1)
