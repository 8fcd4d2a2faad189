"""Looks up functions, their workers and the available stock in the informer cache of GPUUnits."""

import asyncio
from collections.abc import Iterable

from gpu_runtime.contract.crd.function_queue import FUNCTION_QUEUES, FunctionQueue, served_unit_uids
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.operation import OPERATIONS, Operation
from gpu_runtime.contract.crd.well_known import FUNCTION_ID_PATTERN, SYSTEM_NAMESPACE, operation_name
from gpu_runtime.contract.operation_rules import Seeding, StockState, stock_state
from gpu_runtime.contract.validation.reservations import shared_memory_errors
from gpu_runtime.contract.validation.values import matches
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.seeding_lookup import SeedingLookup

FUNCTION_ID_INDEX = "function-id"
"""FunctionQueues by functionID."""
UNIT_UID_INDEX = "unit-uid"
"""FunctionQueues by the UID of each unit that may read the queue."""
WORKERS_BY_FUNCTION_INDEX = "workers"
"""Units with `workerOf`, by the key of the function that they name."""
AVAILABLE_STOCK_INDEX = "stock"
"""Stock units that are Ready and not claimed, by specName. The seeding of some may still run."""

NOT_FOUND_CACHE_SECONDS = 1.0
"""Seconds for which a "function not found" response of the API server is cached.

This time is shorter than the default of dispatching.unknownFunctionGraceSeconds.
"""


class FunctionLister:
    def __init__(
        self,
        client: KubeClient,
        stock_namespace: str,
        metrics: KubeMetrics | None = None,
        *,
        system_namespace: str = SYSTEM_NAMESPACE,
    ) -> None:
        self.units: Informer[GPUUnit] = Informer(client, GPU_UNITS, metrics=metrics)
        self.queues: Informer[FunctionQueue] = Informer(
            client, FUNCTION_QUEUES, ListOptions(system_namespace), metrics=metrics
        )
        self._client = client
        self._not_found_at: dict[str, float] = {}
        """When the API server last reported that the function does not exist, by functionID."""
        self._stock_namespace = stock_namespace
        self._system_namespace = system_namespace
        self._seedings = SeedingLookup(self.find_operation)
        self.queues.store.add_index(FUNCTION_ID_INDEX, lambda queue: (queue.spec.function_id,))
        self.queues.store.add_index(UNIT_UID_INDEX, served_unit_uids)
        self.units.store.add_index(WORKERS_BY_FUNCTION_INDEX, self._index_function_of_worker)
        self.units.store.add_index(AVAILABLE_STOCK_INDEX, self._index_available_stock)

    async def wait_for_sync(self) -> None:
        await self.units.wait_for_sync()
        await self.queues.wait_for_sync()

    def by_id(self, function_id: str) -> GPUUnit | None:
        queue = next(iter(self.queues.store.by_index(FUNCTION_ID_INDEX, function_id)), None)
        return self._owner_of(queue) if queue else None

    def ids(self) -> set[str]:
        """Return the functionIDs of all enabled functions."""
        return {queue.spec.function_id for queue in self.queues.store.all() if self._owner_of(queue)}

    def queue_of(self, function: GPUUnit) -> FunctionQueue | None:
        """Return the queue that the function owns."""
        queue = self._queue_read_by(function)
        return queue if queue and queue.spec.function.uid == function.metadata.uid else None

    def function_of(self, worker: GPUUnit) -> GPUUnit | None:
        """Return the function of a recorded worker, or None if the function is deleted or disabled."""
        queue = self._queue_read_by(worker)
        return self._owner_of(queue) if queue else None

    def function_named_by(self, worker: GPUUnit) -> GPUUnit | None:
        """Return the function that `workerOf` names. Every user who can create units can set this field."""
        name = worker.spec.serverless.worker_of if worker.spec.serverless else ""
        function = self.units.store.get(ObjectKey(worker.metadata.namespace, name))
        return function if function is not None and is_function(function) else None

    def is_served_by(self, unit: GPUUnit, function_id: str) -> bool:
        """Return whether the unit may read the queue with this functionID."""
        queue = self._queue_read_by(unit)
        return queue is not None and queue.spec.function_id == function_id

    def workers(self, function: GPUUnit) -> list[GPUUnit]:
        """Return the recorded workers of the function."""
        return [unit for unit in self.units_naming(function.metadata.key) if self.function_of(unit) is function]

    def unrecorded_workers(self, function: GPUUnit) -> list[GPUUnit]:
        """Return the units that name the function in `workerOf`, but that no queue records."""
        return [unit for unit in self.units_naming(function.metadata.key) if self._queue_read_by(unit) is None]

    def units_naming(self, function: ObjectKey) -> list[GPUUnit]:
        """Return the units that name the function in `workerOf`."""
        return self.units.store.by_index(WORKERS_BY_FUNCTION_INDEX, str(function))

    async def available_stock(self, function: GPUUnitSpec, needed: int) -> int:
        """Return the number of stock units that a handoff can claim now for a worker, at most `needed`.

        The runtime API refuses stock whose seeding still runs, and stock that is too small for the shared memory of the
        function. So this stock does not count.
        """
        available = 0
        for unit in self.units.store.by_index(AVAILABLE_STOCK_INDEX, function.spec_name):
            if available >= needed:
                break
            if any(shared_memory_errors(unit.spec, function.template, "")):
                continue
            available += await self._seedings.stock_state(unit) is StockState.FREE
        return available

    async def find_operation(self, operation_id: str, _uid: str = "") -> Operation | None:
        """Read the operation from the API server. This process does not watch operations."""
        try:
            return await self._client.get(OPERATIONS, ObjectKey(self._system_namespace, operation_name(operation_id)))
        except KubeNotFound:
            return None

    def cache_is_fresh(self) -> bool:
        """Return whether the cache is synced and its last watch or list succeeded.

        If True, a function that is missing from the cache most likely does not exist.
        """
        return all(each.has_synced and not each.last_error for each in (self.units, self.queues))

    async def confirm_not_found(self, function_id: str) -> bool:
        """Ask the API server for the function. Return True if the function does not exist.

        Call this method before an accepted invocation fails because its function is missing. The cache is not enough:
        it can be stale even if it reports no error.
        """
        now = asyncio.get_running_loop().time()
        self._not_found_at = {
            each: time for each, time in self._not_found_at.items() if now - time < NOT_FOUND_CACHE_SECONDS
        }
        if function_id in self._not_found_at:
            return True
        if await self._exists_live(function_id):
            return False
        self._not_found_at[function_id] = now
        return True

    async def _exists_live(self, function_id: str) -> bool:
        if not matches(FUNCTION_ID_PATTERN, function_id):
            return False
        selected = ListOptions(self._system_namespace, field_selector=f"spec.functionID={function_id}")
        for queue in (await self._client.list(FUNCTION_QUEUES, selected)).items:
            function = queue.spec.function
            own = ListOptions(function.namespace, field_selector=f"metadata.name={function.name}")
            for unit in (await self._client.list(GPU_UNITS, own)).items:
                self.queues.record_write(queue)
                self.units.record_write(unit)
        return self.by_id(function_id) is not None

    def related_keys(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Return the keys to reconcile when a unit changes: the function of a worker, or the workers of a function."""
        serverless, metadata = unit.spec.serverless, unit.metadata
        if serverless is None or metadata.namespace == self._stock_namespace:
            return ()
        if serverless.worker_of:
            return (ObjectKey(metadata.namespace, serverless.worker_of),)
        return tuple(worker.metadata.key for worker in self.units_naming(metadata.key))

    def units_of(self, queue: FunctionQueue) -> Iterable[ObjectKey]:
        """Return the keys to reconcile when a queue changes: its function and its workers."""
        function = queue.spec.function
        return (function.key, *(ObjectKey(function.namespace, name) for name in queue.spec.workers.values()))

    def is_worker(self, unit: GPUUnit) -> bool:
        is_stock = unit.metadata.namespace == self._stock_namespace
        return not is_stock and unit.spec.serverless is not None and bool(unit.spec.serverless.worker_of)

    def _queue_read_by(self, unit: GPUUnit) -> FunctionQueue | None:
        return next(iter(self.queues.store.by_index(UNIT_UID_INDEX, unit.metadata.uid)), None)

    def _owner_of(self, queue: FunctionQueue) -> GPUUnit | None:
        """Return the function that owns the queue, or None if the function is deleted or disabled."""
        unit = self.units.store.get(queue.spec.function.key)
        owns = unit is not None and unit.metadata.uid == queue.spec.function.uid and is_function(unit)
        return unit if owns else None

    def _index_function_of_worker(self, unit: GPUUnit) -> Iterable[str]:
        serverless = unit.spec.serverless
        if serverless is None or not self.is_worker(unit):
            return ()
        return (str(ObjectKey(unit.metadata.namespace, serverless.worker_of)),)

    def _index_available_stock(self, unit: GPUUnit) -> Iterable[str]:
        is_stock = unit.metadata.namespace == self._stock_namespace
        return (unit.spec.spec_name,) if is_stock and stock_state(unit, Seeding()) is StockState.FREE else ()


def is_function(unit: GPUUnit) -> bool:
    """Return whether the unit is an enabled function. A function with a deletion timestamp accepts no invocations."""
    return unit.spec.is_function and unit.metadata.deletion_timestamp is None
