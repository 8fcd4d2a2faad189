"""Replicas of the unit service on a real API server, without HTTP."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol, TypeAlias, cast

import pytest
from lightkube import Client as LightkubeClient
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.types import PatchType

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.meta import KubeObject
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.requests import CreateUnit
from gpu_runtime.runtime_api.units.service import UnitService
from localcluster.control_plane import ControlPlane

UNIT = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "GPUUnit", "gpuunits")
QUEUE = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "FunctionQueue", "functionqueues")
STORAGE = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "GPUStorage", "gpustorages")
Object: TypeAlias = dict[str, Any]


@dataclass(frozen=True)
class UnitReplica:
    units: UnitService
    informers: APIInformers
    client: KubeClient
    finished_operations: "FinishedOperations"


class FinishedOperations(list[str]):
    """Records the operationIDs of the objects whose operations the service finishes."""

    async def finish_creator(self, created: KubeObject) -> list[str]:
        if operation_id := created.metadata.annotations.get(Annotation.OPERATION_ID):
            self.append(operation_id)
        return [created.metadata.uid]


class StartUnitReplica(Protocol):
    async def __call__(self, *, idle: bool = False) -> UnitReplica: ...


@dataclass(frozen=True)
class UnitCluster:
    """Reads and changes the units of one namespace without the code of the product."""

    kube: LightkubeClient
    namespace: str

    def create(self, name: str, annotations: Object | None = None, **spec: Any) -> Object:
        unit_spec = {"specName": "g1.1", "image": "python:3.12", **spec}
        metadata = ObjectMeta(name=name, namespace=self.namespace, annotations=annotations or {})
        return as_dict(self.kube.create(UNIT(metadata=metadata, spec=unit_spec)))

    def create_storage(self, name: str) -> None:
        metadata = ObjectMeta(name=name, namespace=self.namespace)
        self.kube.create(STORAGE(metadata=metadata, spec={"size": "1Gi"}))

    def get(self, name: str) -> Object:
        return as_dict(self.kube.get(UNIT, name, namespace=self.namespace))

    def patch(self, name: str, patch: Object) -> None:
        self.kube.patch(UNIT, name, patch, namespace=self.namespace, patch_type=PatchType.MERGE)

    def patch_status(self, name: str, **status: Any) -> None:
        self.kube.patch(UNIT.Status, name, {"status": status}, namespace=self.namespace, patch_type=PatchType.MERGE)

    def delete(self, name: str) -> None:
        self.kube.delete(UNIT, name, namespace=self.namespace)


def as_dict(resource: Any) -> Object:
    return dict(resource.to_dict())


class RejectingHandoff:
    """Fails the test if it creates a unit through the service."""

    async def create(self, request: CreateUnit) -> tuple[GPUUnit, bool]:
        raise AssertionError(f"unexpected create of unit {request.name}")


@pytest.fixture
def cluster(kube: LightkubeClient, namespace: str, platform_crds: tuple[str, ...]) -> UnitCluster:
    return UnitCluster(kube, namespace)


@pytest.fixture
def namespaces(namespace: str) -> APINamespaceSettings:
    return APINamespaceSettings(system=namespace, stock=f"{namespace}-stock", units=(namespace, "elsewhere"))


@pytest.fixture
async def start_replica(
    control_plane: ControlPlane, namespaces: APINamespaceSettings, cluster: UnitCluster
) -> AsyncIterator[StartUnitReplica]:
    """Starts replicas, each with its own connections and informers. The informers of an idle replica do not run."""
    async with AsyncExitStack() as stack:

        async def start(*, idle: bool = False) -> UnitReplica:
            config = load_cluster_config(control_plane.kubeconfig)
            client = await stack.enter_async_context(open_kube_client(config, field_manager="test"))
            informers = new_informers(client, namespaces, KubeMetrics())
            if not idle:
                await stack.enter_async_context(_running(informers))
            finished = FinishedOperations()
            attacher = StorageAttacher(client, informers)
            handoff, operations = cast(Handoff, RejectingHandoff()), cast(OperationRunner, finished)
            units = UnitService(client, informers, namespaces, handoff, operations, attacher)
            return UnitReplica(units, informers, client, finished)

        yield start


@pytest.fixture
async def replica(start_replica: StartUnitReplica) -> UnitReplica:
    return await start_replica()


@pytest.fixture
async def stale_replica(start_replica: StartUnitReplica) -> UnitReplica:
    """A replica whose informers do not run."""
    return await start_replica(idle=True)


@asynccontextmanager
async def _running(informers: APIInformers) -> AsyncIterator[None]:
    async with asyncio.TaskGroup() as tasks:
        running = [tasks.create_task(informer.run()) for informer in informers.all]
        async with asyncio.timeout(60):
            for informer in informers.all:
                await informer.wait_for_sync()
        yield
        for task in running:
            task.cancel()
