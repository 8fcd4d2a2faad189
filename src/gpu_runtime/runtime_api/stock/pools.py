"""Creates, gets, lists and deletes stock pools. The controller manager creates the Deployments of the pools."""

import contextlib
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import UNSET

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationTarget, OperationType
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, Gone, NotFound
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
    """Executes the operations that create pools."""

    def __init__(self, client: KubeClient, informers: APIInformers, operation_store: OperationStore) -> None:
        self._client = client
        self._informers = informers
        self._operation_store = operation_store
        self._state_machine = OperationStateMachine(operation_store, self._create_and_commit, self._undo)

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
                existing = await find_live_pool(self._client, _target_key(operation))
            if existing is not None and not matches_request(existing, operation):
                raise _name_conflict(existing.metadata.key)
            if existing is not None:  # None: the pool was deleted in the meantime, so create it again
                return existing

    async def _undo(self, operation: Operation) -> None:
        pool = await find_live_pool(self._client, _target_key(operation))
        if pool is not None and is_created_by(pool, operation):
            await delete_pool(self._client, self._informers, pool)


@dataclass(frozen=True)
class PoolService:
    client: KubeClient
    informers: APIInformers
    operation_store: OperationStore
    namespaces: APINamespaceSettings
    creator: OperationExecutor
    enqueue: Callable[[Operation], None]
    """Executes the operation in the background, after the response."""

    async def create(self, request: CreateStockPool) -> RecordedOperation:
        admitted = admit_pool(request, self.namespaces)
        target = OperationTarget(kind="StockPool", namespace=admitted.namespace, name=admitted.name)
        with translate_kube_errors():
            await self._check_name_available(admitted)
            recorded = await self.operation_store.record(
                OperationType.CREATE_STOCK_POOL, admitted.operation_id, admitted, target
            )
            if recorded.operation.status.state == OperationState.SUCCEEDED.value:
                await self._check_not_deleted(recorded.operation)
        if not is_finished(recorded.operation.status):
            self.enqueue(recorded.operation)
        return recorded

    def list(self, query: ListPools) -> tuple[list[PoolView], str | None]:
        matching = [pool for pool in self.informers.pools.store.all() if _matches(pool, query)]
        pools, continuation = paginate(matching, lambda pool: pool.metadata.key, query.limit, query.after)
        return [pool_view(pool) for pool in pools], continuation

    async def get(self, namespace: str, name: str) -> PoolView:
        key = pool_key(namespace, name, self.namespaces)
        # If the cache lacks the pool, another replica may just have created it.
        return pool_view(self.informers.pools.store.get(key) or await self._get_live(key))

    async def delete(self, namespace: str, name: str) -> None:
        pool = await self._get_live(pool_key(namespace, name, self.namespaces))
        with translate_kube_errors():
            await self._finish_operation(pool)
            await delete_pool(self.client, self.informers, pool)

    async def _check_name_available(self, request: CreateStockPool) -> None:
        """Raise AlreadyExists before the operation is recorded, so that its operationID stays unused.

        If two requests with the same name are recorded at the same time, the job of one of them fails instead.
        """
        key = ObjectKey(request.namespace, request.name)
        cached = self.informers.pools.store.get(key)
        if cached is None or _operation_id(cached) == request.operation_id:
            return
        pool = await find_live_pool(self.client, key)
        in_use = pool is not None and _operation_id(pool) != request.operation_id
        if in_use and await self.operation_store.find(request.operation_id) is None:
            raise _name_conflict(key)

    async def _check_not_deleted(self, operation: Operation) -> None:
        key = _target_key(operation)
        pool = await find_live_pool(self.client, key)
        if pool is None or pool.metadata.uid != operation.status.target_uid or pool.metadata.deletion_timestamp:
            raise Gone(
                f"operation {operation.spec.operation_id} created pool {key}, which was deleted afterwards; choose a"
                " new operationID to create it again"
            )

    async def _finish_operation(self, pool: StockPool) -> None:
        """Finish the operation that created the pool. Otherwise recovery would resume it and create the pool again."""
        operation = await self.operation_store.find(_operation_id(pool)) if _operation_id(pool) else None
        if operation is not None and operation.spec.type == OperationType.CREATE_STOCK_POOL.value:
            await self.creator.resume(operation)

    async def _get_live(self, key: ObjectKey) -> StockPool:
        with translate_kube_errors():
            pool = await find_live_pool(self.client, key)
        if pool is None:
            raise NotFound(f"pool {key} does not exist")
        return pool


async def find_live_pool(client: KubeClient, key: ObjectKey) -> StockPool | None:
    try:
        return await client.get(STOCK_POOLS, key)
    except kube.KubeNotFound:
        return None


async def delete_pool(client: KubeClient, informers: APIInformers, pool: StockPool) -> None:
    # NotFound: the pool is already deleted. Conflict: another pool has its name now.
    with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):
        await client.delete(STOCK_POOLS, pool.metadata.key, uid=pool.metadata.uid)
    informers.pools.record_delete(pool.metadata.key, pool.metadata.uid)


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


def _name_conflict(key: ObjectKey) -> AlreadyExists:
    return AlreadyExists(f"name: pool {key} already exists and belongs to another request; choose another name")
