"""Selects a claimable stock unit from the cache of this replica.

The selector holds a selected unit in memory until the claim has succeeded or failed, so that requests of one replica do
not select the same unit. A hold only avoids failed claims. If several replicas select the same unit, the conditional
write of the claim decides.
"""

import asyncio
import random
from collections.abc import Iterator
from itertools import chain, islice

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.operations.operation_store import OperationStore, is_finished

MAX_CACHED_SEEDINGS = 1024
"""Maximum number of finished seed operations in the cache. Each cache miss costs one read from the API server."""


class StockSelector:
    def __init__(self, informers: APIInformers, operation_store: OperationStore) -> None:
        self._informers = informers
        self._operation_store = operation_store
        self._held_uids: set[str] = set()
        """UIDs of stock units that requests of this replica hold."""
        self._hold_released = asyncio.Event()
        self._seeded_uids: dict[str, frozenset[str] | None] = {}
        """UIDs of the stock that each finished seed operation created, by operation UID. None if the operation was
        evicted, so that its stock is unknown."""

    async def hold(self, namespace: str, spec_name: str) -> GPUUnit | None:
        """Hold a random claimable stock unit and return it. Return None if no stock unit is claimable."""
        while True:
            held: set[str] = set()
            for unit in _from_random_offset(self._informers.stock_of(namespace, spec_name)):
                if not is_claimable(unit):
                    continue
                if unit.metadata.uid in self._held_uids:
                    held.add(unit.metadata.uid)
                elif await self._try_hold(unit):
                    return unit
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
            selectable = await self._is_seeding_finished(unit)
        except BaseException:
            self.release_hold(unit.metadata.uid)
            raise
        if not selectable:
            self.release_hold(unit.metadata.uid)
        return selectable

    async def _is_seeding_finished(self, unit: GPUUnit) -> bool:
        """Whether the seed operation of this stock unit is finished and lists this unit.

        If a handoff consumed the unit earlier, and the seed operation then resumed after a crash, the seed operation
        would create the unit again.
        """
        annotations = unit.metadata.annotations
        operation_id = annotations.get(Annotation.OPERATION_ID, "")
        operation_uid = annotations.get(Annotation.OPERATION_UID, "")
        if not operation_id or not operation_uid:
            return True  # an administrator created the stock unit without an operation
        if operation_uid not in self._seeded_uids and not await self._load_seeded_uids(operation_id, operation_uid):
            return False
        seeded = self._seeded_uids[operation_uid]
        return seeded is None or unit.metadata.uid in seeded

    async def _load_seeded_uids(self, operation_id: str, operation_uid: str) -> bool:
        """Cache the UIDs that a finished operation has seeded. Return False if the operation is not finished."""
        unfinished = self._informers.unfinished_operations.store.get(self._operation_store.key(operation_id))
        if unfinished is not None and unfinished.metadata.uid == operation_uid:
            return False
        operation = await self._operation_store.find(operation_id)
        if operation is not None and operation.metadata.uid != operation_uid:
            operation = None  # it is a later operation with the same operationID
        if operation is not None and not is_finished(operation.status):
            return False
        if len(self._seeded_uids) >= MAX_CACHED_SEEDINGS:
            self._seeded_uids.clear()
        self._seeded_uids[operation_uid] = frozenset(operation.status.stock_uids) if operation is not None else None
        return True


def _from_random_offset(stock: list[GPUUnit]) -> Iterator[GPUUnit]:
    """Iterate over all stock from a random start, so that replicas rarely select the same unit.

    A shuffle would cost more than the rest of the selection.
    """
    start = random.randrange(len(stock)) if stock else 0  # noqa: S311 - no secret
    return chain(islice(stock, start, None), islice(stock, start))


def is_claimable(unit: GPUUnit) -> bool:
    """Whether an operation may claim the stock unit: it is Ready, not being deleted and not claimed."""
    return (
        unit.status.phase == UnitPhase.READY.value
        and unit.metadata.deletion_timestamp is None
        and Annotation.CLAIMED_BY not in unit.metadata.annotations
    )
