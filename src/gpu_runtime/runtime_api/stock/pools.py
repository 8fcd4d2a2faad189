"""Pools for operators: make, see and delete them. The controller manager gives them their workload."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UNSET

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType, Target
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Gone, NotFound
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.api_informers import Caches
from gpu_runtime.runtime_api.http.paging import page
from gpu_runtime.runtime_api.kube_error_mapping import in_product_words
from gpu_runtime.runtime_api.operations.operation_store import Ledger, Recorded, is_finished
from gpu_runtime.runtime_api.operations.state_machine import Driver, Steps
from gpu_runtime.runtime_api.settings import Namespaces
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools
from gpu_runtime.runtime_api.stock.stock_admission import accepted_pool, pool_key
from gpu_runtime.runtime_api.stock.stock_manifests import is_what_was_asked, pool_manifest, was_made_by
from gpu_runtime.runtime_api.stock.view import PoolView, phase_of, pool_view


class PoolMaking:
    """Drives the operations that make pools."""

    def __init__(self, client: Client, caches: Caches, ledger: Ledger) -> None:
        self._client = client
        self._caches = caches
        self._ledger = ledger
        self._steps = Steps(ledger, self._make, self._undo)

    async def carry(self, operation: Operation) -> Operation:
        return await self._steps.carry(operation)

    async def _make(self, operation: Operation) -> Operation:
        pool = await self._made(operation)
        self._caches.pools.learn(pool)
        return await self._ledger.succeed(operation, target_uid=pool.metadata.uid)

    async def _made(self, operation: Operation) -> StockPool:
        while True:
            try:
                return await self._client.create(STOCK_POOLS, pool_manifest(operation))
            except kube.AlreadyExists:
                found = await live(self._client, _target(operation))
            if found is not None and not is_what_was_asked(found, operation):
                raise _name_taken(found.metadata.key)
            if found is not None:  # else it was deleted in between
                return found

    async def _undo(self, operation: Operation) -> None:
        found = await live(self._client, _target(operation))
        if found is not None and was_made_by(found, operation):
            await remove(self._client, self._caches, found)


@dataclass(frozen=True)
class Pools:
    client: Client
    caches: Caches
    ledger: Ledger
    namespaces: Namespaces
    making: Driver
    begin: Callable[[Operation], None]
    """Works on an operation after the answer."""

    async def create(self, request: CreateStockPool) -> Recorded:
        asked = accepted_pool(request, self.namespaces)
        target = Target(kind="StockPool", namespace=asked.namespace, name=asked.name)
        with in_product_words():
            await self._refuse_taken_name(asked)
            recorded = await self.ledger.record(OperationType.CREATE_STOCK_POOL, asked.operation_id, asked, target)
            if recorded.operation.status.state == OperationState.SUCCEEDED.value:
                await self._refuse_gone(recorded.operation)
        if not is_finished(recorded.operation.status):
            self.begin(recorded.operation)
        return recorded

    def list(self, query: ListPools) -> tuple[list[PoolView], str | None]:
        found = [pool for pool in self.caches.pools.store.all() if _is_asked_for(pool, query)]
        pools, continuation = page(found, lambda pool: pool.metadata.key, query.limit, query.after)
        return [pool_view(pool) for pool in pools], continuation

    async def get(self, namespace: str, name: str) -> PoolView:
        key = pool_key(namespace, name, self.namespaces)
        # What the cache does not know may have been made on another replica a moment ago.
        return pool_view(self.caches.pools.store.get(key) or await self._live(key))

    async def delete(self, namespace: str, name: str) -> None:
        pool = await self._live(pool_key(namespace, name, self.namespaces))
        with in_product_words():
            await self._settle(pool)
            await remove(self.client, self.caches, pool)

    async def _refuse_taken_name(self, asked: CreateStockPool) -> None:
        """Nothing is recorded under an operationID that could only fail. A race for the name fails in the job."""
        key = Key(asked.namespace, asked.name)
        known = self.caches.pools.store.get(key)
        if known is None or _operation_id(known) == asked.operation_id:
            return
        now = await live(self.client, key)
        taken = now is not None and _operation_id(now) != asked.operation_id
        if taken and await self.ledger.find(asked.operation_id) is None:
            raise _name_taken(key)

    async def _refuse_gone(self, operation: Operation) -> None:
        key = _target(operation)
        pool = await live(self.client, key)
        if pool is None or pool.metadata.uid != operation.status.target_uid or pool.metadata.deletion_timestamp:
            raise Gone(
                f"operation {operation.spec.operation_id} made pool {key}, which has been deleted since; choose a new"
                " operationID to make it again"
            )

    async def _settle(self, pool: StockPool) -> None:
        """Bring the operation that made it to its end: whoever resumed it later would make the pool again."""
        operation = await self.ledger.find(_operation_id(pool)) if _operation_id(pool) else None
        if operation is not None and operation.spec.type == OperationType.CREATE_STOCK_POOL.value:
            await self.making.carry(operation)

    async def _live(self, key: Key) -> StockPool:
        with in_product_words():
            found = await live(self.client, key)
        if found is None:
            raise NotFound(f"there is no pool {key}")
        return found


async def live(client: Client, key: Key) -> StockPool | None:
    try:
        return await client.get(STOCK_POOLS, key)
    except kube.NotFound:
        return None


async def remove(client: Client, caches: Caches, pool: StockPool) -> None:
    with contextlib.suppress(kube.NotFound, kube.Conflict):  # it is gone, and one of its name is another one
        await client.delete(STOCK_POOLS, pool.metadata.key, uid=pool.metadata.uid)
    caches.pools.forget(pool.metadata.key, pool.metadata.uid)


def _is_asked_for(pool: StockPool, query: ListPools) -> bool:
    return (
        query.namespace in ("", pool.metadata.namespace)
        and query.spec_name in ("", pool.spec.spec_name)
        and query.phase in (UNSET, phase_of(pool))
    )


def _target(operation: Operation) -> Key:
    return Key(operation.spec.target.namespace, operation.spec.target.name)


def _operation_id(pool: StockPool) -> str:
    return pool.metadata.annotations.get(Annotation.OPERATION_ID, "")


def _name_taken(key: Key) -> Conflict:
    return Conflict(f"name: there is already a pool {key} that this operation did not make; choose another name")
