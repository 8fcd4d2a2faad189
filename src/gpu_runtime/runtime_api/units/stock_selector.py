"""Selects claimable stock of the warmest grade that fits a request, from the cache of this replica.

The selector holds the selected stock unit or prepared pod in memory until the claim has succeeded or failed, so that
requests of one replica do not select the same one. A hold only avoids failed claims. If several replicas select the
same one, the conditional write of the claim decides.
"""

import asyncio
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain, islice
from typing import TypeVar

from msgspec.structs import replace

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import AnyOperation, SourceStock
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.operation_rules import Seeding, StockState, stock_state
from gpu_runtime.contract.prepared_pods import takeable_pods
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss, nearest, prepared_miss
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.normalize import normalize_reservation
from gpu_runtime.contract.validation.reservations import shared_memory_errors
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import KubeObject
from gpu_runtime.process.seeding_lookup import SeedingLookup
from gpu_runtime.runtime_api.api_informers import OPERATION_UID_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore

K = TypeVar("K", bound=KubeObject)


@dataclass(frozen=True)
class StockOffer:
    stock: SourceStock | None
    """The stock that the selector holds, or None if it found none."""
    missed: Mapping[StockGrade, StockMiss]
    """Why the warmer grades were not used. If there is no stock, all allowed grades."""


class StockSelector:
    def __init__(self, informers: APIInformers, operation_store: OperationStore) -> None:
        self._informers = informers
        self._operation_store = operation_store
        self._seedings = SeedingLookup(self._find_seeding)
        self._held_uids: set[str] = set()
        """UIDs of stock units and prepared pods that requests of this replica hold."""
        self._hold_released = asyncio.Event()

    def too_small(self, request: RecordedUnitRequest) -> tuple[FieldError, ...]:
        """Return an error if the shared memory of the request fits into no stock of the flavor."""
        if not request.template.shared_memory:
            return ()
        stock: list[GPUUnit | StockPool] = []
        if StockGrade.RESERVED in request.allowed_grades:
            stock += self._informers.stock_of(request.stock_namespace, request.spec_name)
        if StockGrade.PREPARED in request.allowed_grades:
            pools = self._informers.pools_of(request.namespace, request.spec_name)
            stock += [pool for pool in pools if prepared_miss(request.unit_spec(), pool.spec) is None]
        errors = [tuple(shared_memory_errors(each.spec, request.template, "")) for each in stock]
        return min(errors, key=len, default=())

    async def hold(self, request: RecordedUnitRequest) -> StockOffer:
        """Hold stock of the warmest grade that fits the request."""
        while True:
            held: set[str] = set()
            offer = await self._find_and_hold(request, held)
            # Report "no stock" only if no other request holds stock, because another request may release its hold.
            if offer.stock is not None or not held:
                return offer
            if not held.isdisjoint(self._held_uids):
                await self._hold_released.wait()

    async def _find_and_hold(self, request: RecordedUnitRequest, held: set[str]) -> StockOffer:
        missed: dict[StockGrade, StockMiss] = {}
        for grade in request.allowed_grades:
            found = (
                self._hold_prepared(request, held)
                if grade is StockGrade.PREPARED
                else await self._hold_reserved(request, held)
            )
            if isinstance(found, SourceStock):
                reason = missed.get(StockGrade.PREPARED, "")
                return StockOffer(replace(found, missed=str(reason)), missed)
            missed[grade] = found
        return StockOffer(None, missed)

    def _hold_prepared(self, request: RecordedUnitRequest, held: set[str]) -> SourceStock | StockMiss:
        spec, misses = request.unit_spec(), []
        for pool in self._informers.pools_of(request.namespace, request.spec_name):
            if miss := prepared_miss(spec, pool.spec):
                misses.append(miss)
                continue
            misses.append(StockMiss.NONE_READY)
            for pod in _from_random_offset(takeable_pods(pool, self._informers.prepared_pods_of(pool))):
                if pod.metadata.uid in self._held_uids:
                    held.add(pod.metadata.uid)
                    continue
                self._held_uids.add(pod.metadata.uid)
                return _prepared_stock(pod, pool)
        return nearest(misses)

    async def _hold_reserved(self, request: RecordedUnitRequest, held: set[str]) -> SourceStock | StockMiss:
        """Hold a random claimable stock unit that fits the template."""
        template = request.template
        for unit in _from_random_offset(self._informers.stock_of(request.stock_namespace, request.spec_name)):
            if stock_state(unit, Seeding()) is not StockState.FREE or any(
                shared_memory_errors(unit.spec, template, "")
            ):
                continue
            if unit.metadata.uid in self._held_uids:
                held.add(unit.metadata.uid)
            elif await self._try_hold(unit):
                return self._source_stock(unit)
        return StockMiss.NONE_READY

    def release_hold(self, uid: str) -> None:
        """End a hold: the stock unit is claimed now, or the request does not use it."""
        if uid in self._held_uids:
            self._held_uids.remove(uid)
            self._hold_released.set()
            self._hold_released = asyncio.Event()

    async def _try_hold(self, unit: GPUUnit) -> bool:
        self._held_uids.add(unit.metadata.uid)
        try:
            selectable = await self._seedings.stock_state(unit) is StockState.FREE
        except BaseException:
            self.release_hold(unit.metadata.uid)
            raise
        if not selectable:
            self.release_hold(unit.metadata.uid)
        return selectable

    def _source_stock(self, unit: GPUUnit) -> SourceStock:
        return SourceStock(
            namespace=unit.metadata.namespace,
            name=unit.metadata.name,
            uid=unit.metadata.uid,
            **reservation_fields(unit.spec),
            node=self._informers.node_of(unit),
        )

    async def _find_seeding(self, operation_id: str, uid: str) -> AnyOperation | None:
        """Return the operation from the cache of unfinished operations, otherwise from the API server."""
        for unfinished in self._informers.unfinished_operations.store.by_index(OPERATION_UID_INDEX, uid):
            return unfinished
        return await self._operation_store.find(operation_id)


def _prepared_stock(pod: Pod, pool: StockPool) -> SourceStock:
    return SourceStock(
        namespace=pod.metadata.namespace,
        name=pod.metadata.name,
        uid=pod.metadata.uid,
        **normalize_reservation(pool.spec),
        node=pod.spec.node_name,
        pool=pool.metadata.name,
    )


def _from_random_offset(stock: list[K]) -> Iterator[K]:
    """Iterate over all stock from a random start, so that replicas rarely select the same unit.

    A shuffle would cost more than the rest of the selection.
    """
    start = random.randrange(len(stock)) if stock else 0  # noqa: S311 - no secret
    return chain(islice(stock, start, None), islice(stock, start))
