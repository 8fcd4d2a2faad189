"""Reads all objects that the StockPool controller needs: the pool, its children and its pods.

Only this module reads from the informer stores. The builders and status functions receive an `ObservedPool`.
"""

from dataclasses import dataclass

from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import PODS_BY_POOL_UID
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.unstructured import RawDeployment, RawService
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
    """Why the pod cache may be stale. Empty if the watch of pods works."""


def observe(pool: StockPool, informers: ControllerInformers, settings: ControllerManagerSettings) -> ObservedPool:
    child_key = ObjectKey(pool.metadata.namespace, pool_child_name(pool.metadata.name))
    return ObservedPool(
        pool=pool,
        settings=settings,
        deployment=informers.deployments.store.get(child_key),
        service=informers.services.store.get(child_key),
        pods=tuple(informers.pods.store.by_index(PODS_BY_POOL_UID, pool.metadata.uid)),
        pod_cache_error=informers.pods.last_error,
    )
