"""Pools for operators: make, see and delete them. The controller manager gives them their workload."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UNSET

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationTarget, OperationType
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Gone, NotFound
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.kube_error_mapping import translate_kube_errors
from gpu_runtime.runtime_api.operations.operation_store import OperationStore, RecordedOperation, is_finished
from gpu_runtime.runtime_api.operations.state_machine import OperationExecutor, OperationStateMachine
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools
from gpu_runtime.runtime_api.stock.stock_admission import admit_pool, pool_key
from gpu_runtime.runtime_api.stock.stock_manifests import is_created_by, matches_request, pool_manifest
from gpu_runtime.runtime_api.stock.view import PoolView, phase_of, pool_view


class PoolCreator:
    """Drives the operations that make pools."""

    def __init__(self, client: KubeClient, caches: APIInformers, ledger: OperationStore) -> None:
        self._client = client
        self._informers = caches
        self._operation_store = ledger
        self._state_machine = OperationStateMachine(ledger, self._create_and_commit, self._undo)

    async def resume(self, operation: Operation) -> Operation:
        return await self._state_machine.resume(operation)

    async def _create_and_commit(self, operation: Operation) -> Operation:
        pool = await self._create_or_find(operation)
        self._informers.pools.record_write(pool)
        return await self._operation_store.mark_succeeded(operation, target_uid=pool.metadata.uid)

    async def _create_or_find(self, operation: Operation) -> StockPool:
        while True:
            try:
                return await self._client.create(STOCK_POOLS, pool_manifest(operation))
            except kube.KubeAlreadyExists:
                found = await find_live_pool(self._client, _target_key(operation))
            if found is not None and not matches_request(found, operation):
                raise _name_conflict(found.metadata.key)
            if found is not None:  # else it was deleted in between
                return found

    async def _undo(self, operation: Operation) -> None:
        found = await find_live_pool(self._client, _target_key(operation))
        if found is not None and is_created_by(found, operation):
            await delete_pool(self._client, self._informers, found)


@dataclass(frozen=True)
class PoolService:
    client: KubeClient
    informers: APIInformers
    operation_store: OperationStore
    namespaces: APINamespaceSettings
    creator: OperationExecutor
    enqueue: Callable[[Operation], None]
    """Works on an operation after the answer."""

    async def create(self, request: CreateStockPool) -> RecordedOperation:
        asked = admit_pool(request, self.namespaces)
        target = OperationTarget(kind="StockPool", namespace=asked.namespace, name=asked.name)
        with translate_kube_errors():
            await self._check_name_available(asked)
            recorded = await self.operation_store.record(
                OperationType.CREATE_STOCK_POOL, asked.operation_id, asked, target
            )
            if recorded.operation.status.state == OperationState.SUCCEEDED.value:
                await self._check_not_deleted(recorded.operation)
        if not is_finished(recorded.operation.status):
            self.enqueue(recorded.operation)
        return recorded

    def list(self, query: ListPools) -> tuple[list[PoolView], str | None]:
        found = [pool for pool in self.informers.pools.store.all() if _matches(pool, query)]
        pools, continuation = paginate(found, lambda pool: pool.metadata.key, query.limit, query.after)
        return [pool_view(pool) for pool in pools], continuation

    async def get(self, namespace: str, name: str) -> PoolView:
        key = pool_key(namespace, name, self.namespaces)
        # What the cache does not know may have been made on another replica a moment ago.
        return pool_view(self.informers.pools.store.get(key) or await self._get_live(key))

    async def delete(self, namespace: str, name: str) -> None:
        pool = await self._get_live(pool_key(namespace, name, self.namespaces))
        with translate_kube_errors():
            await self._finish_operation(pool)
            await delete_pool(self.client, self.informers, pool)

    async def _check_name_available(self, asked: CreateStockPool) -> None:
        """Nothing is recorded under an operationID that could only fail. A race for the name fails in the job."""
        key = ObjectKey(asked.namespace, asked.name)
        known = self.informers.pools.store.get(key)
        if known is None or _operation_id(known) == asked.operation_id:
            return
        now = await find_live_pool(self.client, key)
        taken = now is not None and _operation_id(now) != asked.operation_id
        if taken and await self.operation_store.find(asked.operation_id) is None:
            raise _name_conflict(key)

    async def _check_not_deleted(self, operation: Operation) -> None:
        key = _target_key(operation)
        pool = await find_live_pool(self.client, key)
        if pool is None or pool.metadata.uid != operation.status.target_uid or pool.metadata.deletion_timestamp:
            raise Gone(
                f"operation {operation.spec.operation_id} made pool {key}, which has been deleted since; choose a new"
                " operationID to make it again"
            )

    async def _finish_operation(self, pool: StockPool) -> None:
        """Bring the operation that made it to its end: whoever resumed it later would make the pool again."""
        operation = await self.operation_store.find(_operation_id(pool)) if _operation_id(pool) else None
        if operation is not None and operation.spec.type == OperationType.CREATE_STOCK_POOL.value:
            await self.creator.resume(operation)

    async def _get_live(self, key: ObjectKey) -> StockPool:
        with translate_kube_errors():
            found = await find_live_pool(self.client, key)
        if found is None:
            raise NotFound(f"there is no pool {key}")
        return found


async def find_live_pool(client: KubeClient, key: ObjectKey) -> StockPool | None:
    try:
        return await client.get(STOCK_POOLS, key)
    except kube.KubeNotFound:
        return None


async def delete_pool(client: KubeClient, caches: APIInformers, pool: StockPool) -> None:
    with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):  # it is gone, and one of its name is another one
        await client.delete(STOCK_POOLS, pool.metadata.key, uid=pool.metadata.uid)
    caches.pools.record_delete(pool.metadata.key, pool.metadata.uid)


def _matches(pool: StockPool, query: ListPools) -> bool:
    return (
        query.namespace in ("", pool.metadata.namespace)
        and query.spec_name in ("", pool.spec.spec_name)
        and query.phase in (UNSET, phase_of(pool))
    )


def _target_key(operation: Operation) -> ObjectKey:
    return ObjectKey(operation.spec.target.namespace, operation.spec.target.name)


def _operation_id(pool: StockPool) -> str:
    return pool.metadata.annotations.get(Annotation.OPERATION_ID, "")


def _name_conflict(key: ObjectKey) -> Conflict:
    return Conflict(f"name: there is already a pool {key} that this operation did not make; choose another name")
