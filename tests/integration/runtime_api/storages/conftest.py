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

from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import Caches, open_caches
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStock
from gpu_runtime.runtime_api.storages.service import Storages
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.service import Units
from gpu_runtime.runtime_api.units.stock_selector import Shelf
from localcluster.control_plane import ControlPlane

GROUP = "runtime.lokiwager.io"
UNIT = create_namespaced_resource(GROUP, "v1alpha1", "GPUUnit", "gpuunits")
STORAGE = create_namespaced_resource(GROUP, "v1alpha1", "GPUStorage", "gpustorages")
OPERATION = create_namespaced_resource(GROUP, "v1alpha1", "Operation", "operations")
Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class Replica:
    storages: Storages
    units: Units
    caches: Caches
    client: Client


class Replicas(Protocol):
    async def __call__(self, *, idle: bool = False) -> Replica: ...


@dataclass(frozen=True)
class Cluster:
    """Storages, units and stock of one test, seen and changed by somebody else."""

    kube: OtherEyes
    namespaces: Namespaces

    @property
    def namespace(self) -> str:
        return self.namespaces.units[0]

    def make(self, kind: Any, name: str, spec: Object, namespace: str = "", **metadata: Any) -> Object:
        about = ObjectMeta(name=name, namespace=namespace or self.namespace, **metadata)
        return as_dict(self.kube.create(kind(metadata=about, spec=spec)))

    def storage(self, name: str, **spec: Any) -> Object:
        return self.make(STORAGE, name, {"size": "1Gi", **spec})

    def stock(self, *names: str) -> None:
        """Ready stock, as a controller would report it."""
        for name in names:
            self.make(UNIT, name, {"specName": "g1.1", "memory": "1Gi", "gpu": 1}, self.namespaces.stock)
            self._patch(UNIT.Status, name, {"status": {"phase": "Ready"}}, self.namespaces.stock)

    def stock_left(self) -> list[str]:
        return [each["metadata"]["name"] for each in self.all(UNIT, self.namespaces.stock)]

    def all(self, kind: Any, namespace: str = "") -> list[Object]:
        return [as_dict(found) for found in self.kube.list(kind, namespace=namespace or self.namespace)]

    def look(self, kind: Any, name: str) -> Object:
        return as_dict(self.kube.get(kind, name, namespace=self.namespace))

    def gone(self, kind: Any, name: str) -> bool:
        try:
            self.look(kind, name)
        except ApiError as error:
            return error.status.code == 404
        return False

    def held_by(self, storage: str) -> str | None:
        attached = self.look(STORAGE, storage)["spec"].get("attachedTo")
        return attached and str(attached["unit"])

    def patch(self, kind: Any, name: str, patch: Object) -> None:
        self._patch(kind, name, patch, self.namespace)

    def report(self, name: str, **status: Any) -> None:
        """As the controller manager would of a storage."""
        self.patch(STORAGE.Status, name, {"status": status})

    def end(self, kind: Any, name: str) -> None:
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
def cluster(kube: OtherEyes, namespace: str, stock_namespace: str, platform_crds: tuple[str, ...]) -> Cluster:
    return Cluster(kube, Namespaces(system=namespace, stock=stock_namespace, units=(namespace, "elsewhere")))


@pytest.fixture
async def replicas(control_plane: ControlPlane, cluster: Cluster) -> AsyncIterator[Replicas]:
    """As many replicas as a test asks for, each with its own connections and caches; idle ones hear of nothing."""
    async with AsyncExitStack() as stack:

        async def another(*, idle: bool = False) -> Replica:
            config = load_config(control_plane.kubeconfig)
            client = await stack.enter_async_context(connect(config, field_manager="test"))
            caches = open_caches(client, cluster.namespaces, KubeMetrics())
            consumed = ConsumedStock(client, caches)
            if not idle:
                await stack.enter_async_context(_running(caches, consumed))
            return _replica(client, caches, cluster.namespaces, consumed)

        yield another


@pytest.fixture
async def replica(replicas: Replicas) -> Replica:
    return await replicas()


@pytest.fixture
async def idle(replicas: Replicas) -> Replica:
    """A replica whose caches hear of nothing."""
    return await replicas(idle=True)


def _replica(client: Client, caches: Caches, names: Namespaces, consumed: ConsumedStock) -> Replica:
    ledger, attachments = Ledger(client, names.system, SystemClock()), Attachments(client, caches)
    handoff = Handoff(client, caches, ledger, Shelf(caches, ledger), attachments, consumed=consumed)
    units = Units(client, caches, names, handoff, handoff.settle, attachments)
    return Replica(Storages(client, caches, names), units, caches, client)


@asynccontextmanager
async def _running(caches: Caches, consumed: ConsumedStock) -> AsyncIterator[None]:
    ending = asyncio.Event()
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(consumed.run(ending, grace=5))
        running = [tasks.create_task(cache.run()) for cache in caches.all]
        async with asyncio.timeout(60):
            for cache in caches.all:
                await cache.synced()
        yield
        ending.set()
        for task in running:
            task.cancel()
