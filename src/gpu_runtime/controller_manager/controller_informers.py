"""Informers of the controller manager. The reconcilers read from the informer stores, not from the API server."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, FunctionQueue, served_unit_uids
from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, function_request_ids
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import MANAGED_BY_SELECTOR, SYSTEM_NAMESPACE
from gpu_runtime.controller_manager.indexes import (
    FUNCTIONS_BY_REQUEST_ID,
    PODS_BY_POOL_UID,
    PODS_BY_PVC,
    PODS_BY_UNIT_UID,
    PODS_WAITING_FOR_GPUS,
    POOL_PODS_WITHOUT_NODE,
    QUEUES_BY_UNIT_UID,
    STORAGES_BY_CLASS,
    STORAGES_BY_UNIT,
    UNITS_BY_SOURCE_STOCK,
    UNITS_BY_STORAGE,
    attached_unit_keys,
    pool_pods_without_node,
    pool_uids,
    pvc_index_keys,
    source_stock_uids,
    storage_classes,
    storage_index_keys,
    unit_uids,
    waiting_for_gpus,
)
from gpu_runtime.controller_manager.unstructured import (
    RAW_DEPLOYMENTS,
    RAW_NETWORK_POLICIES,
    RAW_SERVICES,
    RawDeployment,
    RawNetworkPolicy,
    RawObject,
    RawService,
)
from gpu_runtime.kube.builtin_kinds import PODS, PVCS, STORAGE_CLASSES, PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.informer import Informer, InformerOptions
from gpu_runtime.kube.meta import ApiResource
from gpu_runtime.kube.metrics import KubeMetrics

OWNED_LIST_OPTIONS = ListOptions(label_selector=MANAGED_BY_SELECTOR)
"""Selects the objects that the platform created. Informers of built-in namespaced kinds cache only these objects."""


@dataclass(frozen=True)
class ControllerInformers:
    units: Informer[GPUUnit]
    pools: Informer[StockPool]
    storages: Informer[GPUStorage]
    queues: Informer[FunctionQueue]
    deployments: Informer[RawDeployment]
    services: Informer[RawService]
    network_policies: Informer[RawNetworkPolicy]
    pods: Informer[Pod]
    pvcs: Informer[PersistentVolumeClaim]
    storage_classes: Informer[StorageClass]

    @property
    def all(self) -> Sequence[Informer[Any]]:
        custom = (self.units, self.pools, self.storages, self.queues)
        children = (self.deployments, self.services, self.network_policies)
        return (*custom, *children, self.pods, self.pvcs, self.storage_classes)

    def record_write(self, resource: ApiResource[Any], written: RawObject) -> None:
        """Store the object that a write returned, so that the next read does not use a stale cache."""
        for informer in self.all:
            if informer.resource is resource:
                informer.record_write(written)


def new_informers(
    client: KubeClient, metrics: KubeMetrics, resync_seconds: float, system_namespace: str = SYSTEM_NAMESPACE
) -> ControllerInformers:
    """Create the informers with their indexes. Only the reconciled kinds are resynced."""
    with_resync = InformerOptions(resync_period=resync_seconds)
    informers = ControllerInformers(
        units=Informer(client, GPU_UNITS, options=with_resync, metrics=metrics),
        pools=Informer(client, STOCK_POOLS, options=with_resync, metrics=metrics),
        storages=Informer(client, GPU_STORAGES, options=with_resync, metrics=metrics),
        queues=Informer(client, FUNCTION_QUEUES, ListOptions(system_namespace), options=with_resync, metrics=metrics),
        deployments=Informer(client, RAW_DEPLOYMENTS, OWNED_LIST_OPTIONS, metrics=metrics),
        services=Informer(client, RAW_SERVICES, OWNED_LIST_OPTIONS, metrics=metrics),
        network_policies=Informer(client, RAW_NETWORK_POLICIES, OWNED_LIST_OPTIONS, metrics=metrics),
        pods=Informer(client, PODS, OWNED_LIST_OPTIONS, metrics=metrics),
        pvcs=Informer(client, PVCS, OWNED_LIST_OPTIONS, metrics=metrics),
        storage_classes=Informer(client, STORAGE_CLASSES, metrics=metrics),
    )
    _add_indexes(informers)
    return informers


def _add_indexes(informers: ControllerInformers) -> None:
    informers.units.store.add_index(UNITS_BY_SOURCE_STOCK, source_stock_uids)
    informers.units.store.add_index(UNITS_BY_STORAGE, storage_index_keys)
    informers.units.store.add_index(FUNCTIONS_BY_REQUEST_ID, function_request_ids)
    informers.queues.store.add_index(QUEUES_BY_UNIT_UID, served_unit_uids)
    informers.pods.store.add_index(PODS_BY_UNIT_UID, unit_uids)
    informers.pods.store.add_index(PODS_BY_POOL_UID, pool_uids)
    informers.pods.store.add_index(PODS_BY_PVC, pvc_index_keys)
    informers.pods.store.add_index(PODS_WAITING_FOR_GPUS, waiting_for_gpus)
    informers.pods.store.add_index(POOL_PODS_WITHOUT_NODE, pool_pods_without_node)
    informers.storages.store.add_index(STORAGES_BY_UNIT, attached_unit_keys)
    informers.storages.store.add_index(STORAGES_BY_CLASS, storage_classes)
