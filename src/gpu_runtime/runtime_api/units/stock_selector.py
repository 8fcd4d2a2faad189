"""Selects a claimable stock unit from the cache of this replica.

The selector holds a selected unit in memory until the claim has succeeded or failed, so that requests of one replica do
not select the same unit. A hold only avoids failed claims. If several replicas select the same unit, the conditional
write of the claim decides.
"""

import asyncio
import random
from collections.abc import Iterator
from itertools import chain, islice

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import AnyOperation, SourceStock
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.template import Template
from gpu_runtime.contract.operation_rules import Seeding, StockState, stock_state
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.reservations import shared_memory_errors
from gpu_runtime.process.seeding_lookup import SeedingLookup
from gpu_runtime.runtime_api.api_informers import OPERATION_UID_INDEX, APIInformers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore


class StockSelector:
    def __init__(self, informers: APIInformers, operation_store: OperationStore) -> None:
        self._informers = informers
        self._operation_store = operation_store
        self._seedings = SeedingLookup(self._find_seeding)
        self._held_uids: set[str] = set()
        """UIDs of stock units that requests of this replica hold."""
        self._hold_released = asyncio.Event()

    def too_small(self, namespace: str, spec_name: str, template: Template) -> tuple[FieldError, ...]:
        """Return an error if the shared memory of the template fits into no stock unit of the flavor."""
        stock = self._informers.stock_of(namespace, spec_name) if template.shared_memory else ()
        errors = [tuple(shared_memory_errors(unit.spec, template, "")) for unit in stock]
        return min(errors, key=len, default=())

    async def hold(self, namespace: str, spec_name: str, template: Template) -> SourceStock | None:
        """Hold a random claimable stock unit that fits the template, and return it. Return None if there is none."""
        while True:
            held: set[str] = set()
            for unit in _from_random_offset(self._informers.stock_of(namespace, spec_name)):
                if stock_state(unit, Seeding()) is not StockState.FREE or any(
                    shared_memory_errors(unit.spec, template, "")
                ):
                    continue
                if unit.metadata.uid in self._held_uids:
                    held.add(unit.metadata.uid)
                elif await self._try_hold(unit):
                    return self._source_stock(unit)
            if not held:
                return None
            # Report "no stock" only if no other request holds stock, because another request may release its hold.
            if not held.isdisjoint(self._held_uids):
                await self._hold_released.wait()

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


def _from_random_offset(stock: list[GPUUnit]) -> Iterator[GPUUnit]:
    """Iterate over all stock from a random start, so that replicas rarely select the same unit.

    A shuffle would cost more than the rest of the selection.
    """
    start = random.randrange(len(stock)) if stock else 0  # noqa: S311 - no secret
    return chain(islice(stock, start, None), islice(stock, start))
