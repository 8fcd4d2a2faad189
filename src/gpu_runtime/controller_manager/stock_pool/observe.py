"""Reads all objects that the StockPool controller needs: the pool, its children and its pods.

Only this module reads from the informer stores. The builders and status functions receive an `ObservedPool`.
"""

from dataclasses import dataclass
from datetime import datetime

from gpu_runtime.contract.crd.gpu_unit import GPUUnitSpec
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.crd.well_known import HANDOFF_PRIORITY_CLASS, Annotation, Label, pool_child_name
from gpu_runtime.contract.prepared_pods import is_claimed_pod
from gpu_runtime.contract.prepared_units import is_adoptable, prepared_unit
from gpu_runtime.contract.validation import normalize_unit
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import PODS_BY_POOL_UID, PODS_WAITING_FOR_GPUS
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.give_way import GiveWay, WaitingPod, YieldingPool, give_way, until_change
from gpu_runtime.controller_manager.stock_pool.pool_rules import invalid_pool
from gpu_runtime.controller_manager.unstructured import RawDeployment, RawNetworkPolicy, RawService
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey, parse_timestamp


@dataclass(frozen=True)
class ObservedPool:
    pool: StockPool
    settings: ControllerManagerSettings
    deployment: RawDeployment | None = None
    service: RawService | None = None
    pods: tuple[Pod, ...] = ()
    pod_cache_error: str = ""
    """Why the pod cache may be stale. Empty if the watch of pods works."""
    network_policy: RawNetworkPolicy | None = None
    give_way: GiveWay | None = None
    """How the pool gives way to units that wait for GPUs. None if no unit waits."""
    until_give_way: float | None = None
    """Seconds until `give_way` may change without an event."""

    @property
    def desired_replicas(self) -> int:
        replicas = self.pool.spec.replicas
        return min(replicas, self.give_way.max_replicas) if self.give_way else replicas

    @property
    def is_adoptable(self) -> bool:
        return is_adoptable(self.pool.spec)

    @property
    def prepared_unit(self) -> GPUUnitSpec:
        """The unit that the pods of an adoptable pool are prepared for."""
        return normalize_unit(prepared_unit(self.pool.spec))


def observe(
    pool: StockPool, informers: ControllerInformers, settings: ControllerManagerSettings, now: datetime
) -> ObservedPool:
    key, child_key = pool.metadata.key, ObjectKey(pool.metadata.namespace, pool_child_name(pool.metadata.name))
    waiting = _waiting_pods(informers) if is_adoptable(pool.spec) else []
    pools = _yielding_pools(informers, settings) if waiting else {}
    return ObservedPool(
        pool=pool,
        settings=settings,
        deployment=informers.deployments.store.get(child_key),
        service=informers.services.store.get(child_key),
        pods=tuple(informers.pods.store.by_index(PODS_BY_POOL_UID, pool.metadata.uid)),
        pod_cache_error=informers.pods.last_error,
        network_policy=informers.network_policies.store.get(child_key),
        give_way=give_way(key, pools, waiting, now) if key in pools else None,
        until_give_way=until_change(pools, waiting, now),
    )


def _yielding_pools(
    informers: ControllerInformers, settings: ControllerManagerSettings
) -> dict[ObjectKey, YieldingPool]:
    policy = settings.pods.policy
    return {
        each.metadata.key: _yielding_pool(each, informers)
        for each in informers.pools.store.all()
        if is_adoptable(each.spec) and not each.metadata.deletion_timestamp and invalid_pool(each.spec, policy) is None
    }


def _yielding_pool(pool: StockPool, informers: ControllerInformers) -> YieldingPool:
    key = ObjectKey(pool.metadata.namespace, pool_child_name(pool.metadata.name))
    deployment = informers.deployments.store.get(key)
    pods = informers.pods.store.by_index(PODS_BY_POOL_UID, pool.metadata.uid)
    # The GPUs of a lost node help no unit. A ReplicaSet deletes its pods first, because they are not ready.
    running = [pod for pod in pods if pod.is_running and not pod.is_on_lost_node]
    return YieldingPool(
        gpu=pool.spec.gpu,
        replicas=deployment.spec.get("replicas", 0) if deployment else 0,
        running=len(running),
        claimed=sum(map(is_claimed_pod, running)),
        given_way_to=given_way_to(deployment),
    )


def given_way_to(deployment: RawDeployment | None) -> dict[str, datetime]:
    """Return when the pool of the Deployment has given way, by the UID of the unit."""
    recorded = deployment.metadata.annotations.get(Annotation.GIVEN_WAY_TO, "") if deployment else ""
    entries = (each.partition("=") for each in recorded.split(","))
    return {uid: time for uid, _, text in entries if (time := parse_timestamp(text)) is not None}


def _waiting_pods(informers: ControllerInformers) -> list[WaitingPod]:
    waiting = []
    for pod in informers.pods.store.by_index(PODS_WAITING_FOR_GPUS, PODS_WAITING_FOR_GPUS):
        unit = informers.units.store.get(ObjectKey(pod.metadata.namespace, pod.metadata.labels[Label.UNIT]))
        since = parse_timestamp(pod.metadata.creation_timestamp)
        if unit is not None and since is not None:
            waiting.append(WaitingPod(unit.metadata.uid, unit.spec.gpu, since, may_get_stock(pod)))
    return waiting


def may_get_stock(pod: Pod) -> bool:
    """Whether the pod waits for GPUs of stock: those of its stock unit, or those of stock that it preempts."""
    return pod.spec.priority_class_name == HANDOFF_PRIORITY_CLASS or bool(pod.status.nominated_node_name)
