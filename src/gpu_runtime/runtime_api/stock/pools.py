"""Creates, gets, lists and deletes stock pools. The controller manager creates the Deployments of the pools."""

from dataclasses import dataclass
from functools import partial

from msgspec import UNSET

from gpu_runtime.contract.crd.operation import Operation, OperationTarget
from gpu_runtime.contract.crd.stock_pool import STOCK_POOLS, StockPool
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Gone
from gpu_runtime.contract.operation_rules import has_succeeded, is_finished, owned_manifest
from gpu_runtime.contract.operation_transitions import Transition
from gpu_runtime.contract.prepared_pods import takeable_pods
from gpu_runtime.contract.recorded_requests import RecordedPoolRequest, recorded_request
from gpu_runtime.contract.validation.pod_policy import DEFAULT_POD_POLICY, PodPolicy
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.live_objects import create_or_read, delete_this, read_live
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.http.route import ANONYMOUS
from gpu_runtime.runtime_api.kube_error_mapping import permanent_fault
from gpu_runtime.runtime_api.object_access import ObjectAccess
from gpu_runtime.runtime_api.operations.drive import OperationDriver, OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import RecordedOperation
from gpu_runtime.runtime_api.settings import APINamespaceSettings
from gpu_runtime.runtime_api.stock.pool_decision import (
    CreatePool,
    DeletePool,
    ObservedPoolCreation,
    ReadPool,
    decide_pool,
    pool_name_conflict,
)
from gpu_runtime.runtime_api.stock.requests import CreateStockPool, ListPools
from gpu_runtime.runtime_api.stock.stock_admission import admit_pool, pool_key
from gpu_runtime.runtime_api.stock.view import PoolView, phase_of, pool_view


class PoolCreator:
    """Executes the operations that create pools. `pool_decision` decides every step."""

    def __init__(self, client: KubeClient, informers: APIInformers, driver: OperationDriver) -> None:
        self._client = client
        self._pools = informers.pools
        self._driver = driver

    async def resume(self, operation: Operation) -> Operation:
        request = recorded_request(operation, RecordedPoolRequest)
        return await self._driver.drive(operation, partial(self._step, request))

    async def _step(self, request: RecordedPoolRequest, operation: Operation) -> Operation:
        observed = ObservedPoolCreation()
        while not isinstance(action := decide_pool(operation, observed), Transition):
            match action:
                case CreatePool():
                    observed = await self._create(operation, request)
                case ReadPool():
                    observed = ObservedPoolCreation(
                        await read_live(self._client, self._pools, operation.target_key), is_live=True
                    )
                case DeletePool(pool):
                    await delete_this(self._client, self._pools, pool.metadata.key, pool.metadata.uid)
                    observed = ObservedPoolCreation(is_live=True)
        return await self._driver.store.write(operation, action)

    async def _create(self, operation: Operation, request: RecordedPoolRequest) -> ObservedPoolCreation:
        manifest = owned_manifest(operation, operation.target_key, request.pool_spec())
        try:
            pool, _ = await create_or_read(self._client, self._pools, manifest)
        except KubeError as error:
            return ObservedPoolCreation(rejection=permanent_fault(error))
        return ObservedPoolCreation(pool, is_live=True)


@dataclass(frozen=True)
class PoolService:
    client: KubeClient
    informers: APIInformers
    operations: OperationRunner
    namespaces: APINamespaceSettings
    pod_policy: PodPolicy = DEFAULT_POD_POLICY

    @property
    def _access(self) -> ObjectAccess[StockPool]:
        missing = "pool {namespace}/{name} does not exist"
        return ObjectAccess(self.client, self.informers.pools, "pool", missing, self.namespaces.pools)

    async def create(self, request: CreateStockPool, caller: str = ANONYMOUS.name) -> RecordedOperation:
        admitted = admit_pool(request, self.namespaces, self.pod_policy)
        target = OperationTarget(kind=STOCK_POOLS.kind, namespace=admitted.namespace, name=admitted.name)
        await self._check_name_available(admitted)
        recorded = await self.operations.store.record(admitted, target, caller=caller)
        if has_succeeded(recorded.operation):
            await self._check_not_deleted(recorded.operation)
        if not is_finished(recorded.operation):
            self.operations.enqueue(recorded.operation)
        return recorded

    def list(self, query: ListPools) -> tuple[list[PoolView], str | None]:
        matching = [pool for pool in self.informers.pools.store.all() if _matches(pool, query)]
        pools, continuation = paginate(matching, lambda pool: pool.metadata.key, query.limit, query.after)
        return [self._view(pool) for pool in pools], continuation

    async def get(self, namespace: str, name: str) -> PoolView:
        key = pool_key(namespace, name, self.namespaces)
        return self._view(await self._access.get(key))

    async def delete(self, namespace: str, name: str) -> None:
        pool = await self._access.get_live(pool_key(namespace, name, self.namespaces))
        for uid in await self.operations.finish_creator(pool):
            await delete_this(self.client, self.informers.pools, pool.metadata.key, uid)

    def _view(self, pool: StockPool) -> PoolView:
        prepared = takeable_pods(pool, self.informers.prepared_pods_of(pool)) if pool.spec.adoptable else []
        return pool_view(pool, len(prepared))

    async def _check_name_available(self, request: RecordedPoolRequest) -> None:
        """Raise AlreadyExists before the operation is recorded, so that its operationID stays unused.

        If two requests with the same name are recorded at the same time, the job of one of them fails instead.
        """
        key = ObjectKey(request.namespace, request.name)
        cached = self.informers.pools.store.get(key)
        if cached is None or _operation_id(cached) == request.operation_id:
            return
        pool = await read_live(self.client, self.informers.pools, key)
        in_use = pool is not None and _operation_id(pool) != request.operation_id
        if in_use and await self.operations.store.find(request.operation_id) is None:
            raise pool_name_conflict(key)

    async def _check_not_deleted(self, operation: Operation) -> None:
        key = operation.target_key
        pool = await read_live(self.client, self.informers.pools, key)
        if pool is None or pool.metadata.uid != operation.status.target_uid or pool.metadata.deletion_timestamp:
            raise Gone(
                f"operation {operation.spec.operation_id} created pool {key}, which was deleted afterwards; choose a"
                " new operationID to create it again"
            )


def _matches(pool: StockPool, query: ListPools) -> bool:
    return (
        query.namespace in ("", pool.metadata.namespace)
        and query.spec_name in ("", pool.spec.spec_name)
        and query.phase in (UNSET, phase_of(pool))
    )


def _operation_id(pool: StockPool) -> str:
    return pool.metadata.annotations.get(Annotation.OPERATION_ID, "")
