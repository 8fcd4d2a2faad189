"""Looks up functions, their workers and the available stock in the informer cache of GPUUnits."""

import asyncio
from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.operation import OPERATIONS, Operation
from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN, SYSTEM_NAMESPACE, operation_name
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

REQUEST_ID_INDEX = "request"
"""Enabled functions by requestID."""
WORKERS_BY_FUNCTION_INDEX = "workers"
"""Workers by the key of their function."""
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
        self._client = client
        self._not_found_at: dict[str, float] = {}
        """When the API server last reported that the function does not exist, by requestID."""
        self._stock_namespace = stock_namespace
        self._system_namespace = system_namespace
        self._seedings = SeedingLookup(self.find_operation)
        self.units.store.add_index(REQUEST_ID_INDEX, self._index_request_id)
        self.units.store.add_index(WORKERS_BY_FUNCTION_INDEX, self._index_function_of_worker)
        self.units.store.add_index(AVAILABLE_STOCK_INDEX, self._index_available_stock)

    def by_request_id(self, request_id: str) -> GPUUnit | None:
        """Return the function with this requestID. If several units have this requestID, return the oldest unit.

        So a newer unit cannot receive the invocations of an existing function.
        """
        functions = self.units.store.by_index(REQUEST_ID_INDEX, request_id)
        return min(functions, key=lambda it: (it.metadata.creation_timestamp or "", str(it.metadata.key)), default=None)

    def request_ids(self) -> set[str]:
        """Return the requestIDs of all enabled functions."""
        return {each for unit in self.units.store.all() for each in self._index_request_id(unit)}

    def function_of(self, worker: GPUUnit) -> GPUUnit | None:
        """Return the function of a worker, or None if the function is deleted or disabled, or has another requestID."""
        serverless = worker.spec.serverless
        if serverless is None:
            return None
        function = self.units.store.get(ObjectKey(worker.metadata.namespace, serverless.worker_of))
        if function is None or not is_function(function):
            return None
        return function if serves_request_id(function, serverless.request_id) else None

    def workers(self, function: ObjectKey) -> list[GPUUnit]:
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
        return self.units.has_synced and not self.units.last_error

    async def confirm_not_found(self, request_id: str) -> bool:
        """Ask the API server for the function. Return True if the function does not exist.

        Call this method before an accepted invocation fails because its function is missing. The cache is not enough:
        it can be stale even if it reports no error.
        """
        now = asyncio.get_running_loop().time()
        self._not_found_at = {
            each: time for each, time in self._not_found_at.items() if now - time < NOT_FOUND_CACHE_SECONDS
        }
        if request_id in self._not_found_at or not matches(REQUEST_ID_PATTERN, request_id):
            return True
        units = await self._client.list(
            GPU_UNITS, ListOptions(field_selector=f"spec.serverless.requestID={request_id}")
        )
        for unit in units.items:
            self.units.record_write(unit)
        if any(request_id in self._index_request_id(unit) for unit in units.items):
            return False
        self._not_found_at[request_id] = now
        return True

    def related_keys(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Return the keys to reconcile when a unit changes: the function of a worker, or the workers of a function."""
        serverless, metadata = unit.spec.serverless, unit.metadata
        if serverless is None or metadata.namespace == self._stock_namespace:
            return ()
        if serverless.worker_of:
            return (ObjectKey(metadata.namespace, serverless.worker_of),)
        return tuple(worker.metadata.key for worker in self.workers(metadata.key))

    def is_worker(self, unit: GPUUnit) -> bool:
        is_stock = unit.metadata.namespace == self._stock_namespace
        return not is_stock and unit.spec.serverless is not None and bool(unit.spec.serverless.worker_of)

    def _index_request_id(self, unit: GPUUnit) -> Iterable[str]:
        serves = is_function(unit) and unit.metadata.namespace != self._stock_namespace
        return (unit.spec.serverless.request_id,) if serves and unit.spec.serverless else ()

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


def serves_request_id(unit: GPUUnit, request_id: str) -> bool:
    """Return whether the unit has this requestID. The function's own unit and all its workers have it."""
    return unit.spec.serverless is not None and unit.spec.serverless.request_id == request_id
