"""What is known of a pool, read from caches. Only this reads; deciders never do."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import PODS_BY_POOL_UID
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, RawService
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class ObservedPool:
    pool: StockPool
    settings: ControllerManagerSettings
    deployment: RawDeployment | None = None
    service: RawService | None = None
    pods: tuple[Pod, ...] = ()
    pod_cache_error: str = ""
    """Why the cache of pods may be out of date, if it may."""


def observe(pool: StockPool, caches: ControllerInformers, settings: ControllerManagerSettings) -> ObservedPool:
    children = ObjectKey(pool.metadata.namespace, pool_child_name(pool.metadata.name))
    return ObservedPool(
        pool=pool,
        settings=settings,
        deployment=caches.deployments.store.get(children),
        service=caches.services.store.get(children),
        pods=tuple(caches.pods.store.by_index(PODS_BY_POOL_UID, pool.metadata.uid)),
        pod_cache_error=caches.pods.last_error,
    )
