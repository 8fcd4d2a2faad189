"""Functions and their workers as the cache of units has them."""

import asyncio
from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN, Annotation
from gpu_runtime.contract.validation.values import matches
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics

REQUEST_ID_INDEX = "request"
"""Functions, enabled ones alone, by their requestID."""
WORKERS_BY_FUNCTION_INDEX = "workers"
"""Workers by the function they belong to."""
AVAILABLE_STOCK_INDEX = "stock"
"""Stock that can be taken now, by its specName."""


NOT_FOUND_CACHE_SECONDS = 1.0
"""Seconds for which it stands that there is no such function: less than work waits for one that is not known."""


class FunctionLister:
    def __init__(self, client: KubeClient, stock_namespace: str, metrics: KubeMetrics | None = None) -> None:
        self.units: Informer[GPUUnit] = Informer(client, GPU_UNITS, metrics=metrics)
        self._client = client
        self._not_found_at: dict[str, float] = {}
        """When it was last seen that there is no such function, by its requestID."""
        self._stock_namespace = stock_namespace
        self.units.store.add_index(REQUEST_ID_INDEX, self._index_request_id)
        self.units.store.add_index(WORKERS_BY_FUNCTION_INDEX, self._index_function_of_worker)
        self.units.store.add_index(AVAILABLE_STOCK_INDEX, self._index_available_stock)

    def by_request_id(self, request_id: str) -> GPUUnit | None:
        """The function that has this queue. Where several name it, the oldest: the others never take its work away."""
        found = self.units.store.by_index(REQUEST_ID_INDEX, request_id)
        return min(found, key=_creation_order) if found else None

    def request_ids(self) -> set[str]:
        """The queues that there are."""
        return {each for unit in self.units.store.all() for each in self._index_request_id(unit)}

    def function_of(self, worker: GPUUnit) -> GPUUnit | None:
        """The function that a worker serves; None where it is gone, or serves no more."""
        said = worker.spec.serverless
        function = self.units.store.get(ObjectKey(worker.metadata.namespace, said.worker_of)) if said else None
        if function is None or said is None or not is_function(function):
            return None
        same = function.spec.serverless is not None and function.spec.serverless.request_id == said.request_id
        return function if same else None

    def workers(self, function: ObjectKey) -> list[GPUUnit]:
        return self.units.store.by_index(WORKERS_BY_FUNCTION_INDEX, str(function))

    def available_stock(self, spec_name: str) -> int:
        """How much stock there is that can be taken now."""
        return len(self.units.store.by_index(AVAILABLE_STOCK_INDEX, spec_name))

    def cache_is_fresh(self) -> bool:
        """Whether what is not known here is really not there."""
        return self.units.has_synced and not self.units.last_error

    async def confirm_not_found(self, request_id: str) -> bool:
        """Whether there is no such function, as Kubernetes says when it is asked: a watch that is behind does not know
        that it is. Before work is failed that was accepted."""
        now = asyncio.get_running_loop().time()
        self._not_found_at = {
            each: seen for each, seen in self._not_found_at.items() if now - seen < NOT_FOUND_CACHE_SECONDS
        }
        if request_id in self._not_found_at or not matches(REQUEST_ID_PATTERN, request_id):
            return True
        found = await self._client.list(
            GPU_UNITS, ListOptions(field_selector=f"spec.serverless.requestID={request_id}")
        )
        for unit in found.items:
            self.units.record_write(unit)
        if any(request_id in self._index_request_id(unit) for unit in found.items):
            return False
        self._not_found_at[request_id] = now
        return True

    def related_keys(self, unit: GPUUnit) -> Iterable[ObjectKey]:
        """Whom a change of this unit concerns besides itself: a worker its function, a function its workers."""
        said, about = unit.spec.serverless, unit.metadata
        if said is None or about.namespace == self._stock_namespace:
            return ()
        if said.worker_of:
            return (ObjectKey(about.namespace, said.worker_of),)
        return tuple(worker.metadata.key for worker in self.workers(about.key))

    def is_worker(self, unit: GPUUnit) -> bool:
        active = unit.metadata.namespace != self._stock_namespace
        return active and unit.spec.serverless is not None and bool(unit.spec.serverless.worker_of)

    def _index_request_id(self, unit: GPUUnit) -> Iterable[str]:
        serves = is_function(unit) and unit.metadata.namespace != self._stock_namespace
        return (unit.spec.serverless.request_id,) if serves and unit.spec.serverless else ()

    def _index_function_of_worker(self, unit: GPUUnit) -> Iterable[str]:
        said = unit.spec.serverless
        return (str(ObjectKey(unit.metadata.namespace, said.worker_of)),) if said and self.is_worker(unit) else ()

    def _index_available_stock(self, unit: GPUUnit) -> Iterable[str]:
        free = unit.status.phase == UnitPhase.READY.value and Annotation.CLAIMED_BY not in unit.metadata.annotations
        if not free or unit.metadata.namespace != self._stock_namespace or unit.metadata.deletion_timestamp:
            return ()
        return (unit.spec.spec_name,)


def is_function(unit: GPUUnit) -> bool:
    """Whether invocations are taken for it: one that is being deleted takes none."""
    return unit.spec.is_function and unit.metadata.deletion_timestamp is None


def serves_request_id(unit: GPUUnit, request_id: str) -> bool:
    """Whether work of this queue is done in the unit, be it the function's own or a worker of it."""
    return unit.spec.serverless is not None and unit.spec.serverless.request_id == request_id


def _creation_order(unit: GPUUnit) -> tuple[str, str]:
    return unit.metadata.creation_timestamp or "", str(unit.metadata.key)
