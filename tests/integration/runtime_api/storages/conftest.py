"""Replicas of the services behind storages and units on the real API server, without the HTTP in front of them.

There is no controller manager: what it would write, a test writes.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pytest
from lightkube import ApiError
from lightkube import Client as OtherEyes
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from lightkube.types import PatchType

from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStockDeleter
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.stock_selector import StockSelector
from localcluster.control_plane import ControlPlane

GROUP = "runtime.lokiwager.io"
UNIT = create_namespaced_resource(GROUP, "v1alpha1", "GPUUnit", "gpuunits")
STORAGE = create_namespaced_resource(GROUP, "v1alpha1", "GPUStorage", "gpustorages")
OPERATION = create_namespaced_resource(GROUP, "v1alpha1", "Operation", "operations")
Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class StorageReplica:
    storages: StorageService
    units: UnitService
    caches: APIInformers
    client: KubeClient


class StartStorageReplica(Protocol):
    async def __call__(self, *, idle: bool = False) -> StorageReplica: ...


@dataclass(frozen=True)
class StorageCluster:
    """Storages, units and stock of one test, seen and changed by somebody else."""

    kube: OtherEyes
    namespaces: APINamespaceSettings

    @property
    def namespace(self) -> str:
        return self.namespaces.units[0]

    def create(self, kind: Any, name: str, spec: Object, namespace: str = "", **metadata: Any) -> Object:
        about = ObjectMeta(name=name, namespace=namespace or self.namespace, **metadata)
        return as_dict(self.kube.create(kind(metadata=about, spec=spec)))

    def create_storage(self, name: str, **spec: Any) -> Object:
        return self.create(STORAGE, name, {"size": "1Gi", **spec})

    def create_stock(self, *names: str) -> None:
        """Ready stock, as a controller would report it."""
        for name in names:
            self.create(UNIT, name, {"specName": "g1.1", "memory": "1Gi", "gpu": 1}, self.namespaces.stock)
            self._patch(UNIT.Status, name, {"status": {"phase": "Ready"}}, self.namespaces.stock)

    def remaining_stock(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.list_objects(UNIT, self.namespaces.stock)]

    def list_objects(self, kind: Any, namespace: str = "") -> list[Object]:
        return [as_dict(found) for found in self.kube.list(kind, namespace=namespace or self.namespace)]

    def get(self, kind: Any, name: str) -> Object:
        return as_dict(self.kube.get(kind, name, namespace=self.namespace))

    def is_deleted(self, kind: Any, name: str) -> bool:
        try:
            self.get(kind, name)
        except ApiError as error:
            return error.status.code == 404
        return False

    def attached_unit(self, storage: str) -> str | None:
        attached = self.get(STORAGE, storage)["spec"].get("attachedTo")
        return attached and str(attached["unit"])

    def patch(self, kind: Any, name: str, patch: Object) -> None:
        self._patch(kind, name, patch, self.namespace)

    def patch_storage_status(self, name: str, **status: Any) -> None:
        """As the controller manager would of a storage."""
        self.patch(STORAGE.Status, name, {"status": status})

    def delete(self, kind: Any, name: str) -> None:
        self.kube.delete(kind, name, namespace=self.namespace)

    def _patch(self, kind: Any, name: str, patch: Object, namespace: str) -> None:
        self.kube.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.MERGE)


def as_dict(found: Any) -> Object:
    return dict(found.to_dict())


@pytest.fixture
def stock_namespace(kube: OtherEyes, namespace: str) -> Iterator[str]:
    name = f"{namespace}-stock"
    kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    kube.delete(Namespace, name)


@pytest.fixture
def cluster(kube: OtherEyes, namespace: str, stock_namespace: str, platform_crds: tuple[str, ...]) -> StorageCluster:
    return StorageCluster(
        kube, APINamespaceSettings(system=namespace, stock=stock_namespace, units=(namespace, "elsewhere"))
    )


@pytest.fixture
async def start_replica(control_plane: ControlPlane, cluster: StorageCluster) -> AsyncIterator[StartStorageReplica]:
    """As many replicas as a test asks for, each with its own connections and caches; idle ones hear of nothing."""
    async with AsyncExitStack() as stack:

        async def another(*, idle: bool = False) -> StorageReplica:
            config = load_cluster_config(control_plane.kubeconfig)
            client = await stack.enter_async_context(open_kube_client(config, field_manager="test"))
            caches = new_informers(client, cluster.namespaces, KubeMetrics())
            consumed = ConsumedStockDeleter(client, caches)
            if not idle:
                await stack.enter_async_context(_running(caches, consumed))
            return _replica(client, caches, cluster.namespaces, consumed)

        yield another


@pytest.fixture
async def replica(start_replica: StartStorageReplica) -> StorageReplica:
    return await start_replica()


@pytest.fixture
async def stale_replica(start_replica: StartStorageReplica) -> StorageReplica:
    """A replica whose caches hear of nothing."""
    return await start_replica(idle=True)


def _replica(
    client: KubeClient, caches: APIInformers, names: APINamespaceSettings, consumed: ConsumedStockDeleter
) -> StorageReplica:
    ledger, attachments = OperationStore(client, names.system, SystemClock()), StorageAttacher(client, caches)
    handoff = Handoff(client, caches, ledger, StockSelector(caches, ledger), attachments, consumed_deleter=consumed)
    units = UnitService(client, caches, names, handoff, handoff.finish_operation, attachments)
    return StorageReplica(StorageService(client, caches, names), units, caches, client)


@asynccontextmanager
async def _running(caches: APIInformers, consumed: ConsumedStockDeleter) -> AsyncIterator[None]:
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumed.run(ending, grace_seconds=5))
        running = [tasks.create_task(cache.run()) for cache in caches.all]
        async with asyncio.timeout(60):
            for cache in caches.all:
                await cache.wait_for_sync()
        yield
        ending.set()
        for task in running:
            task.cancel()
