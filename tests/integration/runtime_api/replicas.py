"""Replicas of the services behind the API, on a real API server, and what can happen to them."""

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
from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.runtime_api.api_informers import Caches, open_caches
from gpu_runtime.runtime_api.operations.jobs import Jobs
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.operations.state_machine import Drivers
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.stock.pools import PoolMaking, Pools
from gpu_runtime.runtime_api.stock.stock_seeder import Seeding
from gpu_runtime.runtime_api.stock.stock_units import StockUnits


class SetClock:
    """The time of day, which a test can move."""

    def __init__(self) -> None:
        self.ahead = timedelta()

    def now(self) -> datetime:
        return datetime.now(UTC) + self.ahead

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()


class Killed(Exception):
    """The process is no more. Nobody handles this."""


class MortalClient(Client):
    """Dies at a write: before it reaches the API server, or after, when nobody hears the answer any more."""

    def __init__(self, living: Client, at_write: int, *, carried_out: bool) -> None:
        super().__init__(living._transport, field_manager="test")
        self._left = at_write
        self._carried_out = carried_out

    async def _write(self, *args: Any, **kwargs: Any) -> bytes:
        self._left -= 1
        if self._left > 0:
            return await super()._write(*args, **kwargs)
        if self._left == 0 and self._carried_out:
            await super()._write(*args, **kwargs)
        raise Killed


@dataclass
class Replica:
    client: Client
    caches: Caches
    namespace: str
    clock: SetClock = field(default_factory=SetClock)
    begun: list[Operation] = field(default_factory=list)
    """What the services have asked to be worked on. Tests decide who does it, and when."""

    def __post_init__(self) -> None:
        names = Namespaces(system=self.namespace, stock=self.namespace, pools=(self.namespace,))
        self.ledger = Ledger(self.client, self.namespace, self.clock)
        self.seeding = Seeding(self.client, self.caches, self.ledger)
        self.making = PoolMaking(self.client, self.caches, self.ledger)
        self.stock = StockUnits(self.caches, self.ledger, self.namespace, self.begun.append)
        self.pools = Pools(self.client, self.caches, self.ledger, names, self.making, self.begun.append)
        self.jobs = Jobs(self.ledger)
        self.drivers: Drivers = {
            OperationType.SEED_STOCK: self.seeding,
            OperationType.CREATE_STOCK_POOL: self.making,
        }

    def mortal(self, at_write: int, *, carried_out: bool) -> "Replica":
        """The same replica, which will be killed at that write."""
        return Replica(MortalClient(self.client, at_write, carried_out=carried_out), self.caches, self.namespace)

    async def units(self) -> dict[str, GPUUnit]:
        found = await self.client.list(GPU_UNITS, Selection(self.namespace))
        return {unit.metadata.name: unit for unit in found.items}

    async def pools_there(self) -> dict[str, StockPool]:
        found = await self.client.list(STOCK_POOLS, Selection(self.namespace))
        return {pool.metadata.name: pool for pool in found.items}

    async def operations(self) -> dict[str, Operation]:
        found = await self.client.list(OPERATIONS, Selection(self.namespace))
        return {each.spec.operation_id: each for each in found.items}


@asynccontextmanager
async def replica(kubeconfig: Path, namespace: str, *, watching: bool = True) -> AsyncIterator[Replica]:
    """One with caches that are complete, and keep themselves true while they watch."""
    async with connect(load_config(kubeconfig), field_manager="runtime-api") as client:
        caches = open_caches(client, Namespaces(system=namespace, stock=namespace), KubeMetrics())
        async with asyncio.TaskGroup() as tasks:
            running = [tasks.create_task(cache.run()) for cache in caches.all]
            for cache in caches.all:
                await cache.synced()
            if not watching:
                for task in running:
                    task.cancel()
            try:
                yield Replica(client, caches, namespace)
            finally:
                for task in running:
                    task.cancel()
