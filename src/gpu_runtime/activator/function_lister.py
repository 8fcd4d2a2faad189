"""Functions and their workers as the cache of units has them."""

import asyncio
from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.well_known import REQUEST_ID_PATTERN, Annotation
from gpu_runtime.contract.validation.values import matches
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.codec import Selection
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics

REQUEST = "request"
"""Functions, enabled ones alone, by their requestID."""
WORKERS = "workers"
"""Workers by the function they belong to."""
STOCK = "stock"
"""Stock that can be taken now, by its specName."""


STANDS = 1.0
"""Seconds for which it stands that there is no such function: less than work waits for one that is not known."""


class Functions:
    def __init__(self, client: Client, stock_namespace: str, metrics: KubeMetrics | None = None) -> None:
        self.units: Informer[GPUUnit] = Informer(client, GPU_UNITS, metrics=metrics)
        self._client = client
        self._absent: dict[str, float] = {}
        """When it was last seen that there is no such function, by its requestID."""
        self._stock_namespace = stock_namespace
        self.units.store.index_by(REQUEST, self._request_ids)
        self.units.store.index_by(WORKERS, self._functions)
        self.units.store.index_by(STOCK, self._flavours)

    def serving(self, request_id: str) -> GPUUnit | None:
        """The function that has this queue. Where several name it, the oldest: the others never take its work away."""
        found = self.units.store.by(REQUEST, request_id)
        return min(found, key=_seniority) if found else None

    def request_ids(self) -> set[str]:
        """The queues that there are."""
        return {each for unit in self.units.store.all() for each in self._request_ids(unit)}

    def of(self, worker: GPUUnit) -> GPUUnit | None:
        """The function that a worker serves; None where it is gone, or serves no more."""
        said = worker.spec.serverless
        function = self.units.store.get(Key(worker.metadata.namespace, said.worker_of)) if said else None
        if function is None or said is None or not is_function(function):
            return None
        same = function.spec.serverless is not None and function.spec.serverless.request_id == said.request_id
        return function if same else None

    def workers(self, function: Key) -> list[GPUUnit]:
        return self.units.store.by(WORKERS, str(function))

    def stock(self, spec_name: str) -> int:
        """How much stock there is that can be taken now."""
        return len(self.units.store.by(STOCK, spec_name))

    def certain(self) -> bool:
        """Whether what is not known here is really not there."""
        return self.units.has_synced and not self.units.trouble

    async def is_gone(self, request_id: str) -> bool:
        """Whether there is no such function, as Kubernetes says when it is asked: a watch that is behind does not know
        that it is. Before work is failed that was accepted."""
        now = asyncio.get_running_loop().time()
        self._absent = {each: seen for each, seen in self._absent.items() if now - seen < STANDS}
        if request_id in self._absent or not matches(REQUEST_ID_PATTERN, request_id):
            return True
        found = await self._client.list(GPU_UNITS, Selection(fields=f"spec.serverless.requestID={request_id}"))
        for unit in found.items:
            self.units.learn(unit)
        if any(request_id in self._request_ids(unit) for unit in found.items):
            return False
        self._absent[request_id] = now
        return True

    def concerned(self, unit: GPUUnit) -> Iterable[Key]:
        """Whom a change of this unit concerns besides itself: a worker its function, a function its workers."""
        said, about = unit.spec.serverless, unit.metadata
        if said is None or about.namespace == self._stock_namespace:
            return ()
        if said.worker_of:
            return (Key(about.namespace, said.worker_of),)
        return tuple(worker.metadata.key for worker in self.workers(about.key))

    def is_worker(self, unit: GPUUnit) -> bool:
        active = unit.metadata.namespace != self._stock_namespace
        return active and unit.spec.serverless is not None and bool(unit.spec.serverless.worker_of)

    def _request_ids(self, unit: GPUUnit) -> Iterable[str]:
        serves = is_function(unit) and unit.metadata.namespace != self._stock_namespace
        return (unit.spec.serverless.request_id,) if serves and unit.spec.serverless else ()

    def _functions(self, unit: GPUUnit) -> Iterable[str]:
        said = unit.spec.serverless
        return (str(Key(unit.metadata.namespace, said.worker_of)),) if said and self.is_worker(unit) else ()

    def _flavours(self, unit: GPUUnit) -> Iterable[str]:
        free = unit.status.phase == UnitPhase.READY.value and Annotation.CLAIMED_BY not in unit.metadata.annotations
        if not free or unit.metadata.namespace != self._stock_namespace or unit.metadata.deletion_timestamp:
            return ()
        return (unit.spec.spec_name,)


def is_function(unit: GPUUnit) -> bool:
    """Whether invocations are taken for it: one that is being deleted takes none."""
    return unit.spec.is_function and unit.metadata.deletion_timestamp is None


def serves(unit: GPUUnit, request_id: str) -> bool:
    """Whether work of this queue is done in the unit, be it the function's own or a worker of it."""
    return unit.spec.serverless is not None and unit.spec.serverless.request_id == request_id


def _seniority(unit: GPUUnit) -> tuple[str, str]:
    return unit.metadata.creation_timestamp or "", str(unit.metadata.key)
