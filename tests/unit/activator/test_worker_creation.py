"""The reconciler respects workers that entered the cache after it observed the function."""

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
    """Records the names of the workers that the reconciler creates."""

    def __init__(self) -> None:
        self.created: list[str] = []

    async def create(self, _function: GPUUnit, name: str, *, without_stock: bool) -> None:
        assert without_stock
        self.created.append(name)


def reconciler_with(lifecycle: RecordingLifecycle, *cached: GPUUnit) -> FunctionReconciler:
    functions = FunctionLister(cast(KubeClient, SimpleNamespace(with_options=lambda **_: None)), "stock")
    for each in cached:
        functions.units.store.put(each)
    unused: Any = None
    return FunctionReconciler(
        functions=functions,
        liveness=unused,
        backlog=unused,
        lifecycle=cast(Any, lifecycle),
        nats=unused,
        topology=unused,
        settings=unused,
        metrics=unused,
        clock=unused,
        seconds_since=unused,
        worker_backoff=WorkerBackoff(Backoff(initial_seconds=10, max_seconds=100)),
        recorder=unused,
    )


async def created_workers(seen: ObservedFunction, count: int, *cached: GPUUnit) -> list[str]:
    """Return the names of the workers that are created while the given units are in the cache."""
    lifecycle = RecordingLifecycle()
    await reconciler_with(lifecycle, *cached)._apply_decision(seen, CreateWorkers(count))
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
