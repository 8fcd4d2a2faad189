"""Reads all objects that the GPUUnit controller needs: the unit, its children, storages and stock unit.

Only this module reads from the informer stores. The rules, builders and status functions receive an `ObservedUnit`.
"""

from dataclasses import dataclass, field
from datetime import datetime
from functools import cached_property
from types import MappingProxyType

from gpu_runtime.contract.crd.function_queue import FunctionRef
from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation, Label, UnitRole, function_queue_name, role_of
from gpu_runtime.contract.prepared_pods import claim_labels
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.indexes import (
    PODS_BY_PVC,
    PODS_BY_UNIT_UID,
    POOL_PODS_WITHOUT_NODE,
    QUEUES_BY_UNIT_UID,
)
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.source_stock_ref import SourceStockRef, source_stock
from gpu_runtime.controller_manager.unstructured import RawDeployment, RawNetworkPolicy, RawService
from gpu_runtime.controller_manager.volume_refs import unit_storage_keys
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import KubeObject, ObjectKey


@dataclass(frozen=True)
class ObservedUnit:
    unit: GPUUnit
    settings: ControllerManagerSettings
    now: datetime
    deployment: RawDeployment | None = None
    service: RawService | None = None
    network_policy: RawNetworkPolicy | None = None
    pods: tuple[Pod, ...] = ()
    pod_cache_error: str = ""
    """Why the pod cache may be stale. Empty if the watch of pods works."""
    storages: MappingProxyType[str, GPUStorage] = field(default_factory=lambda: MappingProxyType({}))
    mounting_pods: MappingProxyType[str, tuple[Pod, ...]] = field(default_factory=lambda: MappingProxyType({}))
    """All pods that mount a storage, including pods of other units, by storage name."""
    mount_warning: str = ""
    """Why a volume of the unit's pod cannot be mounted, from the Events of the pod."""
    prepared_pod: Pod | None = None
    """The prepared pod that the handoff of the unit has claimed."""
    function_id: str = ""
    """The functionID of the queue that the unit may read. Empty if there is none."""
    queue_owner: FunctionRef | None = None
    """The function that owns the requestID of the unit."""
    stock_objects: tuple[KubeObject, ...] = ()
    """The source stock unit, its Deployment and its pods, if they still exist and may use the GPUs."""
    pools_wait: bool = False
    """Whether a pod of an adoptable pool waits for a node. It could get the GPUs of the stock unit first."""

    @property
    def role(self) -> UnitRole:
        return role_of(self.unit.metadata.namespace, self.settings.namespaces.stock)

    @property
    def pod_selector(self) -> dict[str, str]:
        """The labels by which the Service and the NetworkPolicy of the unit select its pods."""
        metadata, stock = self.unit.metadata, self.source_stock
        if stock is None or not stock.pool:
            return {Label.UNIT: metadata.name}
        return claim_labels(metadata.name, metadata.annotations.get(Annotation.OPERATION_UID, ""))

    @cached_property
    def source_stock(self) -> SourceStockRef | None:
        return source_stock(self.unit)


def observe(
    unit: GPUUnit, informers: ControllerInformers, settings: ControllerManagerSettings, now: datetime
) -> ObservedUnit:
    key, uid = unit.metadata.key, unit.metadata.uid
    return ObservedUnit(
        unit=unit,
        settings=settings,
        now=now,
        deployment=informers.deployments.store.get(key),
        service=informers.services.store.get(key),
        network_policy=informers.network_policies.store.get(key),
        pods=tuple(informers.pods.store.by_index(PODS_BY_UNIT_UID, uid)),
        pod_cache_error=informers.pods.last_error,
        storages=MappingProxyType(_storages(unit, informers)),
        mounting_pods=MappingProxyType(
            {
                each.name: tuple(informers.pods.store.by_index(PODS_BY_PVC, str(each)))
                for each in unit_storage_keys(unit)
            }
        ),
        prepared_pod=_prepared_pod(unit, source_stock(unit), informers),
        function_id=_function_id(unit, informers),
        queue_owner=_queue_owner(unit, informers),
        stock_objects=_stock_objects(source_stock(unit), informers),
        pools_wait=bool(informers.pods.store.by_index(POOL_PODS_WITHOUT_NODE, POOL_PODS_WITHOUT_NODE)),
    )


def _storages(unit: GPUUnit, informers: ControllerInformers) -> dict[str, GPUStorage]:
    storages = {key.name: informers.storages.store.get(key) for key in unit_storage_keys(unit)}
    return {name: storage for name, storage in storages.items() if storage is not None}


def _function_id(unit: GPUUnit, informers: ControllerInformers) -> str:
    queues = informers.queues.store.by_index(QUEUES_BY_UNIT_UID, unit.metadata.uid)
    return next((queue.spec.function_id for queue in queues), "") if unit.spec.serves_function else ""


def _queue_owner(unit: GPUUnit, informers: ControllerInformers) -> FunctionRef | None:
    request_id = unit.spec.serverless.request_id if unit.spec.serverless else ""
    namespace = informers.queues.list_options.namespace
    queue = informers.queues.store.get(ObjectKey(namespace, function_queue_name(request_id))) if request_id else None
    return queue.spec.function if queue else None


def _prepared_pod(unit: GPUUnit, stock: SourceStockRef | None, informers: ControllerInformers) -> Pod | None:
    if stock is None or not stock.pool:
        return None
    pod = informers.pods.store.get(ObjectKey(unit.metadata.namespace, stock.name))
    return pod if pod is not None and pod.metadata.uid == stock.uid else None


def _stock_objects(stock: SourceStockRef | None, informers: ControllerInformers) -> tuple[KubeObject, ...]:
    """List the objects of the source stock unit that still exist.

    The stock unit and its Deployment count too, because Kubernetes may create another pod as long as they exist.
    """
    if stock is None:
        return ()
    unit = informers.units.store.get(ObjectKey(stock.namespace, stock.name))
    return (
        *([unit] if unit and unit.metadata.uid == stock.uid else []),
        *informers.deployments.store.owned_by(stock.uid),
        *informers.pods.store.by_index(PODS_BY_UNIT_UID, stock.uid),
    )
