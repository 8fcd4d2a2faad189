"""The caches of the controller manager: everything it reads, it reads from here."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_runtime.contract.crd.gpu_storage import GPU_STORAGES, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import OWNED_SELECTOR
from gpu_runtime.controller_manager.indexes import (
    ATTACHED,
    CLAIM,
    POOL_UID,
    SOURCE_STOCK,
    STORAGE,
    STORAGE_CLASS,
    UNIT_UID,
    attached_units,
    claim_keys,
    pool_uids,
    source_stock_uids,
    storage_classes,
    storage_keys,
    unit_uids,
)
from gpu_runtime.controller_manager.workload.unstructured import (
    DEPLOYMENTS,
    NETWORK_POLICIES,
    SERVICES,
    Deployment,
    NetworkPolicy,
    Owned,
    Service,
)
from gpu_runtime.kube.builtin_kinds import CLAIMS, PODS, STORAGE_CLASSES, PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.informer import Informer, Pace
from gpu_runtime.kube.meta import Resource
from gpu_runtime.kube.metrics import KubeMetrics

OWNED = Selection(labels=OWNED_SELECTOR)
"""Of Kubernetes' own kinds, only what the platform made is of interest."""


@dataclass(frozen=True)
class Caches:
    units: Informer[GPUUnit]
    pools: Informer[StockPool]
    storages: Informer[GPUStorage]
    deployments: Informer[Deployment]
    services: Informer[Service]
    network_policies: Informer[NetworkPolicy]
    pods: Informer[Pod]
    claims: Informer[PersistentVolumeClaim]
    storage_classes: Informer[StorageClass]

    @property
    def all(self) -> Sequence[Informer[Any]]:
        own = (self.units, self.pools, self.storages)
        owned = (self.deployments, self.services, self.network_policies)
        return (*own, *owned, self.pods, self.claims, self.storage_classes)

    def learn(self, resource: Resource[Any], written: Owned) -> None:
        """Take note of what a write returned."""
        for cache in self.all:
            if cache.resource is resource:
                cache.learn(written)


def open_caches(client: Client, metrics: KubeMetrics, resync: float) -> Caches:
    looked_at_again = Pace(resync=resync)
    caches = Caches(
        units=Informer(client, GPU_UNITS, pace=looked_at_again, metrics=metrics),
        pools=Informer(client, STOCK_POOLS, pace=looked_at_again, metrics=metrics),
        storages=Informer(client, GPU_STORAGES, pace=looked_at_again, metrics=metrics),
        deployments=Informer(client, DEPLOYMENTS, OWNED, metrics=metrics),
        services=Informer(client, SERVICES, OWNED, metrics=metrics),
        network_policies=Informer(client, NETWORK_POLICIES, OWNED, metrics=metrics),
        pods=Informer(client, PODS, OWNED, metrics=metrics),
        claims=Informer(client, CLAIMS, OWNED, metrics=metrics),
        storage_classes=Informer(client, STORAGE_CLASSES, metrics=metrics),
    )
    _index(caches)
    return caches


def _index(caches: Caches) -> None:
    caches.units.store.index_by(SOURCE_STOCK, source_stock_uids)
    caches.units.store.index_by(STORAGE, storage_keys)
    caches.pods.store.index_by(UNIT_UID, unit_uids)
    caches.pods.store.index_by(POOL_UID, pool_uids)
    caches.pods.store.index_by(CLAIM, claim_keys)
    caches.storages.store.index_by(ATTACHED, attached_units)
    caches.storages.store.index_by(STORAGE_CLASS, storage_classes)
