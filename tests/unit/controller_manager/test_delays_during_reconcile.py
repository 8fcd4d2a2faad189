"""A delay that ends during a reconcile is not lost: the object is reconciled again at once."""

from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any, cast

import msgspec

from gpu_runtime.contract.crd.well_known import Annotation, Label
from gpu_runtime.controller_manager.controller_informers import ControllerInformers, new_informers
from gpu_runtime.controller_manager.function_queues import FunctionQueues
from gpu_runtime.controller_manager.gpu_unit.adoption import PodAdopter
from gpu_runtime.controller_manager.gpu_unit.lifetime import UnitLifetimes
from gpu_runtime.controller_manager.gpu_unit.reconcile import GPUUnitReconciler
from gpu_runtime.controller_manager.gpu_unit.stock_release import PREEMPTION_DELAY_SECONDS
from gpu_runtime.controller_manager.gpu_unit.stock_releaser import StockReleaser
from gpu_runtime.controller_manager.stock_pool.give_way import GIVE_WAY_DELAY_SECONDS
from gpu_runtime.controller_manager.stock_pool.reconcile import StockPoolReconciler
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import RequeueAfter
from gpu_runtime.kube.errors import ApiStatus, KubeNotFound
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.meta import ApiResource, Manifest, ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from tests.unit.controller_manager.controller_objects import NOON, SETTINGS, pod, pool, unit

SOON = timedelta(microseconds=500)
"""A timer of uvloop may fire this much too early."""
MESSAGE = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu"
UNSCHEDULABLE = [{"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": MESSAGE}]
FROM_STOCK = {
    Annotation.SOURCE_STOCK_NAME: "stock",
    Annotation.SOURCE_STOCK_NAMESPACE: "runtime-stock",
    Annotation.SOURCE_STOCK_UID: "s",
}


class StubKube:
    """A Kubernetes client without objects. A created object is returned as it is in the request."""

    def with_options(self, **_: object) -> "StubKube":
        return self

    async def get(self, _resource: object, key: ObjectKey) -> Any:
        raise KubeNotFound(ApiStatus(code=404, message=str(key)))

    async def create(self, resource: ApiResource[Any], manifest: Manifest) -> Any:
        return msgspec.convert(manifest, resource.model)

    async def merge_patch(self, *_: object, **__: object) -> Any:
        raise KubeNotFound(ApiStatus(code=404, message="the status is not written"))


def clock_around(due: datetime) -> Callable[[], datetime]:
    """Return a clock that is shortly before the time when it is read first, and after the time from then on."""
    times = [due - SOON]
    return lambda: times.pop() if times else due + SOON


def waiting_pod() -> Any:
    labels = {Label.UNIT: "web", Label.UNIT_UID: "uid-of-web", Label.ROLE: "active"}
    return pod(created=NOON.strftime("%Y-%m-%dT%H:%M:%SZ"), phase="Pending", conditions=UNSCHEDULABLE, labels=labels)


def new_status_writer(due: datetime) -> tuple[KubeClient, ControllerInformers, StatusWriter]:
    client = cast(KubeClient, StubKube())
    recorder = EventRecorder(client, "test", "test")
    informers = new_informers(client, KubeMetrics(), resync_seconds=600)
    informers.pods.store.put(waiting_pod())
    return client, informers, StatusWriter(client, recorder, clock_around(due))


async def test_pool_gives_way_if_a_unit_becomes_due_during_the_reconcile() -> None:
    client, informers, writer = new_status_writer(NOON + timedelta(seconds=GIVE_WAY_DELAY_SECONDS))
    informers.units.store.put(unit(gpu=1))
    prepared = pool(image="python", gpu=1, template={"command": ["serve"]}, adoptable=True)
    informers.pools.store.put(prepared)
    result = await StockPoolReconciler(client, informers, writer, SETTINGS).reconcile(prepared)
    assert isinstance(result, RequeueAfter)
    assert result.seconds == SOON.total_seconds()


async def test_unit_may_preempt_if_its_delay_ends_during_the_reconcile() -> None:
    client, informers, writer = new_status_writer(NOON + timedelta(seconds=PREEMPTION_DELAY_SECONDS))
    waiting = unit(gpu=1, annotations=FROM_STOCK)
    informers.units.store.put(waiting)
    reconciler = GPUUnitReconciler(
        client,
        informers,
        writer,
        SETTINGS,
        StorageLocks(),
        UnitLifetimes(client, informers, writer, SETTINGS),
        PodAdopter(client, informers, "runtime-system"),
        StockReleaser(client, "runtime-system"),
        FunctionQueues(client, informers, "runtime-system", "runtime-stock"),
    )
    result = await reconciler.reconcile(waiting)
    assert isinstance(result, RequeueAfter)
    assert result.seconds == SOON.total_seconds()
