"""What is known of a pool, read from caches. Only this reads; deciders never do."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.indexes import POOL_UID
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.workload.unstructured import Deployment, Service
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import Key


@dataclass(frozen=True)
class Observed:
    pool: StockPool
    settings: ControllerManagerSettings
    deployment: Deployment | None = None
    service: Service | None = None
    pods: tuple[Pod, ...] = ()
    pods_trouble: str = ""
    """Why the cache of pods may be out of date, if it may."""


def observe(pool: StockPool, caches: Caches, settings: ControllerManagerSettings) -> Observed:
    children = Key(pool.metadata.namespace, pool_child_name(pool.metadata.name))
    return Observed(
        pool=pool,
        settings=settings,
        deployment=caches.deployments.store.get(children),
        service=caches.services.store.get(children),
        pods=tuple(caches.pods.store.by(POOL_UID, pool.metadata.uid)),
        pods_trouble=caches.pods.trouble,
    )
