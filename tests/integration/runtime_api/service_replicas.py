"""Replicas of the services behind the API with a real API server, and simulated kills of a replica."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import OPERATIONS, Operation, OperationType
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.jobs.routes import JobService
from gpu_runtime.runtime_api.operations.drive import OperationDriver, OperationExecutor, OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.pools import PoolCreator, PoolService
from gpu_runtime.runtime_api.stock.stock_seeder import StockSeeder
from gpu_runtime.runtime_api.stock.stock_units import StockUnitService


class AdjustableClock:
    """The system clock with an offset that a test can change."""

    def __init__(self) -> None:
        self.offset = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.offset

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


class SimulatedKill(Exception):
    """Simulates the kill of a process. No code of the product handles it."""


class ClientKilledAtWrite(KubeClient):
    """Raises SimulatedKill at a write: before the API server receives it, or after it, so that the response is lost."""

    def __init__(self, client: KubeClient, at_write: int, *, after_write: bool) -> None:
        super().__init__(client._transport, field_manager="test")
        self._writes_until_kill = at_write
        self._after_write = after_write

    async def _write(self, *args: Any, **kwargs: Any) -> bytes:
        self._writes_until_kill -= 1
        if self._writes_until_kill > 0:
            return await super()._write(*args, **kwargs)
        if self._writes_until_kill == 0 and self._after_write:
            await super()._write(*args, **kwargs)
        raise SimulatedKill


@dataclass(frozen=True)
class RecordingRunner(OperationRunner):
    """Records the operations that the services enqueue. Tests decide which replica executes them, and when."""

    enqueued: list[Operation] = field(default_factory=list)

    def enqueue(self, operation: Operation) -> None:
        self.enqueued.append(operation)


@dataclass
class ServiceReplica:
    client: KubeClient
    caches: APIInformers
    namespace: str
    clock: AdjustableClock = field(default_factory=AdjustableClock)

    def __post_init__(self) -> None:
        namespaces = APINamespaceSettings(system=self.namespace, stock=self.namespace, pools=(self.namespace,))
        self.operation_store = OperationStore(self.client, self.namespace, self.clock)
        driver = OperationDriver(self.operation_store, self.clock)
        executors: dict[OperationType, OperationExecutor] = {
            OperationType.SEED_STOCK: StockSeeder(self.client, self.caches, driver),
            OperationType.CREATE_STOCK_POOL: PoolCreator(self.client, self.caches, driver),
        }
        self.runner = RecordingRunner(self.operation_store, executors, BackgroundQueue())
        self.stock = StockUnitService(self.client, self.caches, self.runner, self.namespace)
        self.pools = PoolService(self.client, self.caches, self.runner, namespaces)
        self.jobs = JobService(self.operation_store)

    def killed_at_write(self, at_write: int, *, after_write: bool) -> "ServiceReplica":
        """The same replica with a client that is killed at this write."""
        return ServiceReplica(
            ClientKilledAtWrite(self.client, at_write, after_write=after_write), self.caches, self.namespace
        )

    async def units(self) -> dict[str, GPUUnit]:
        listed = await self.client.list(GPU_UNITS, ListOptions(self.namespace))
        return {unit.metadata.name: unit for unit in listed.items}

    async def pools_by_name(self) -> dict[str, StockPool]:
        listed = await self.client.list(STOCK_POOLS, ListOptions(self.namespace))
        return {pool.metadata.name: pool for pool in listed.items}

    async def operations(self) -> dict[str, Operation]:
        listed = await self.client.list(OPERATIONS, ListOptions(self.namespace))
        return {each.spec.operation_id: each for each in listed.items}


@asynccontextmanager
async def service_replica(kubeconfig: Path, namespace: str, *, watching: bool = True) -> AsyncIterator[ServiceReplica]:
    """A replica with complete caches. Without `watching`, the caches are not updated any more."""
    async with open_kube_client(load_cluster_config(kubeconfig), field_manager="runtime-api") as client:
        informers = new_informers(client, APINamespaceSettings(system=namespace, stock=namespace), KubeMetrics())
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(informer.run()) for informer in informers.all]
            for informer in informers.all:
                await informer.wait_for_sync()
            if not watching:
                for task in running:
                    task.cancel()
            try:
                yield ServiceReplica(client, informers, namespace)
            finally:
                for task in running:
                    task.cancel()
