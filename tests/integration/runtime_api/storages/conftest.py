"""Replicas of the storage and unit services on a real API server, without HTTP.

No controller manager runs. Tests write what it would write.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias

import pytest
from lightkube import ApiError
from lightkube import Client as LightkubeClient
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace
from lightkube.types import PatchType

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import OperationType
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.operations.drive import OperationDriver, OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.stock_selector import StockSelector
from gpu_runtime.runtime_api.units.unit_admission import admit_unit
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
    informers: APIInformers
    client: KubeClient

    async def create_unit(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        return await self.units.handoff.create(admit_unit(request, self.units.namespaces))


class StartStorageReplica(Protocol):
    async def __call__(self, *, idle: bool = False) -> StorageReplica: ...


@dataclass(frozen=True)
class StorageCluster:
    """Reads and changes the storages, units and stock of one test without the code of the product."""

    kube: LightkubeClient
    namespaces: APINamespaceSettings

    @property
    def namespace(self) -> str:
        return self.namespaces.units[0]

    def create(self, kind: Any, name: str, spec: Object, namespace: str = "", **metadata: Any) -> Object:
        object_meta = ObjectMeta(name=name, namespace=namespace or self.namespace, **metadata)
        return as_dict(self.kube.create(kind(metadata=object_meta, spec=spec)))

    def create_storage(self, name: str, **spec: Any) -> Object:
        return self.create(STORAGE, name, {"size": "1Gi", **spec})

    def create_stock(self, *names: str) -> None:
        """Create Ready stock units. The controller would write their status."""
        for name in names:
            self.create(UNIT, name, {"specName": "g1.1", "memory": "1Gi", "gpu": 1}, self.namespaces.stock)
            self._patch(UNIT.Status, name, {"status": {"phase": "Ready"}}, self.namespaces.stock)

    def remaining_stock(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.list_objects(UNIT, self.namespaces.stock)]

    def list_objects(self, kind: Any, namespace: str = "") -> list[Object]:
        return [as_dict(each) for each in self.kube.list(kind, namespace=namespace or self.namespace)]

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
        """Write the status of a storage, as the controller manager does."""
        self.patch(STORAGE.Status, name, {"status": status})

    def delete(self, kind: Any, name: str) -> None:
        self.kube.delete(kind, name, namespace=self.namespace)

    def _patch(self, kind: Any, name: str, patch: Object, namespace: str) -> None:
        self.kube.patch(kind, name, patch, namespace=namespace, patch_type=PatchType.MERGE)


def as_dict(resource: Any) -> Object:
    return dict(resource.to_dict())


@pytest.fixture
def stock_namespace(kube: LightkubeClient, namespace: str) -> Iterator[str]:
    name = f"{namespace}-stock"
    kube.create(Namespace(metadata=ObjectMeta(name=name)))
    yield name
    kube.delete(Namespace, name)


@pytest.fixture
def cluster(
    kube: LightkubeClient, namespace: str, stock_namespace: str, platform_crds: tuple[str, ...]
) -> StorageCluster:
    return StorageCluster(
        kube, APINamespaceSettings(system=namespace, stock=stock_namespace, units=(namespace, "elsewhere"))
    )


@pytest.fixture
async def start_replica(control_plane: ControlPlane, cluster: StorageCluster) -> AsyncIterator[StartStorageReplica]:
    """Starts replicas, each with its own connections and informers. The informers of an idle replica do not run."""
    async with AsyncExitStack() as stack:

        async def start(*, idle: bool = False) -> StorageReplica:
            config = load_cluster_config(control_plane.kubeconfig)
            client = await stack.enter_async_context(open_kube_client(config, field_manager="test"))
            informers = new_informers(client, cluster.namespaces, KubeMetrics())
            deletions = BackgroundQueue()
            if not idle:
                await stack.enter_async_context(_running(informers, deletions))
            return _replica(client, informers, cluster.namespaces, deletions)

        yield start


@pytest.fixture
async def replica(start_replica: StartStorageReplica) -> StorageReplica:
    return await start_replica()


@pytest.fixture
async def stale_replica(start_replica: StartStorageReplica) -> StorageReplica:
    """A replica whose informers do not run."""
    return await start_replica(idle=True)


def _replica(
    client: KubeClient,
    informers: APIInformers,
    namespaces: APINamespaceSettings,
    deletions: BackgroundQueue,
) -> StorageReplica:
    driver = OperationDriver(OperationStore(client, namespaces.system, SystemClock()), SystemClock())
    selector, attacher = StockSelector(informers, driver.store), StorageAttacher(client, informers)
    handoff = Handoff(client, informers, driver, selector, attacher, deletions=deletions)
    operations = OperationRunner(driver.store, {OperationType.CREATE_UNIT: handoff}, BackgroundQueue())
    units = UnitService(client, informers, namespaces, handoff, operations, attacher)
    return StorageReplica(StorageService(client, informers, namespaces), units, informers, client)


@asynccontextmanager
async def _running(informers: APIInformers, deletions: BackgroundQueue) -> AsyncIterator[None]:
    stopping = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(deletions.run(stopping, grace_seconds=5))
        running = [tasks.create_task(informer.run()) for informer in informers.all]
        async with asyncio.timeout(60):
            for informer in informers.all:
                await informer.wait_for_sync()
        yield
        stopping.set()
        for task in running:
            task.cancel()
