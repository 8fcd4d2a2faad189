"""Which workers are made, when others have come since the function was looked at."""

from types import SimpleNamespace
from typing import Any, cast

from gpu_runtime.activator.autoscaler import CreateWorkers, ObservedFunction, WorkerState
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.reconcile import FunctionReconciler
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from tests.unit.activator.activator_objects import observed, unit, worker


class RecordingLifecycle:
    """Takes down which workers are asked for."""

    def __init__(self) -> None:
        self.created: list[str] = []

    async def make(self, _function: GPUUnit, name: str, *, cold: bool) -> None:
        assert cold
        self.created.append(name)


def reconciler_with(lifecycle: RecordingLifecycle, *there: GPUUnit) -> FunctionReconciler:
    functions = FunctionLister(cast(KubeClient, SimpleNamespace(patient=lambda **_: None)), "stock")
    for each in there:
        functions.units.store.put(each)
    anything: Any = None
    return FunctionReconciler(
        functions=functions,
        liveness=anything,
        backlog=anything,
        lifecycle=cast(Any, lifecycle),
        nats=anything,
        topology=anything,
        settings=anything,
        metrics=anything,
        clock=anything,
        seconds_since=anything,
        worker_backoff=WorkerBackoff(Backoff(initial_seconds=10, max_seconds=100)),
        recorder=anything,
    )


async def created_workers(seen: ObservedFunction, count: int, *there: GPUUnit) -> list[str]:
    """The workers that are made once those units are in the cache."""
    lifecycle = RecordingLifecycle()
    await reconciler_with(lifecycle, *there)._apply_decision(seen, CreateWorkers(count))
    return lifecycle.created


async def test_workers_cached_after_observation_count_toward_the_limit() -> None:
    seen = observed(9, max_workers=2)
    first, second = (unit(f"f-w{slot}", worker_of="f") for slot in (0, 1))
    assert await created_workers(seen, 2, first, second) == []
    assert await created_workers(seen, 2, first) == ["f-w1"]


async def test_no_worker_is_created_above_max_workers() -> None:
    seen = observed(9, max_workers=1)
    assert await created_workers(seen, 1, *(unit(f"f-w{slot}", worker_of="f") for slot in (0, 1))) == []


async def test_worker_name_of_a_foreign_unit_is_skipped() -> None:
    seen = observed(9, worker(1), max_workers=3)
    assert await created_workers(seen, 2, unit("f-w0"), unit("f-w1", worker_of="f")) == ["f-w2", "f-w3"]


def test_recreated_function_starts_without_backoff() -> None:
    reconciler, function = reconciler_with(RecordingLifecycle()), ObjectKey("units", "f")
    reconciler.worker_backoff.observe(function, [worker(0, WorkerState.UNHEALTHY)], reconciler.liveness, 0)
    assert not reconciler.worker_backoff.allows_create(function, 1)
    reconciler.on_unit_deleted(function)
    assert reconciler.worker_backoff.allows_create(function, 1)
