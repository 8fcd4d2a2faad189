"""Stock that can be taken now, as this replica sees it.

Requests of one replica do not choose the same unit: a chosen one is reserved in memory until its claim is decided. That
only saves lost races; between replicas the claim alone decides.
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
"""How many seeding operations are remembered as finished. A forgotten one costs a read."""


class StockSelector:
    def __init__(self, caches: APIInformers, ledger: OperationStore) -> None:
        self._informers = caches
        self._operation_store = ledger
        self._held_uids: set[str] = set()
        """UIDs of stock units that somebody has reserved."""
        self._hold_released = asyncio.Event()
        self._seeded_uids: dict[str, frozenset[str] | None] = {}
        """The stock that finished operations have seeded, by their UIDs; None where nobody knows any more."""

    async def hold(self, namespace: str, spec_name: str) -> GPUUnit | None:
        """A stock unit to claim, at random among those that can be. None when there is none left."""
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
            # What others have reserved may still become free: an answer of "none left" must be true.
            if not held.isdisjoint(self._held_uids):
                await self._hold_released.wait()

    def release_hold(self, uid: str) -> None:
        """What somebody had reserved is claimed now, or was not taken."""
        if uid in self._held_uids:
            self._held_uids.remove(uid)
            self._hold_released.set()
            self._hold_released = asyncio.Event()

    async def _try_hold(self, unit: GPUUnit) -> bool:
        self._held_uids.add(unit.metadata.uid)
        try:
            taken = await self._is_seeding_finished(unit)
        except BaseException:
            self.release_hold(unit.metadata.uid)
            raise
        if not taken:
            self.release_hold(unit.metadata.uid)
        return taken

    async def _is_seeding_finished(self, unit: GPUUnit) -> bool:
        """Whether the operation that seeds this stock is finished, and has this unit among its own.

        Until then a seeding that resumes after a crash would make the consumed unit again.
        """
        said = unit.metadata.annotations
        operation_id, operation_uid = said.get(Annotation.OPERATION_ID, ""), said.get(Annotation.OPERATION_UID, "")
        if not operation_id or not operation_uid:
            return True  # made by hand
        if operation_uid not in self._seeded_uids and not await self._load_seeded_uids(operation_id, operation_uid):
            return False
        seeded = self._seeded_uids[operation_uid]
        return seeded is None or unit.metadata.uid in seeded

    async def _load_seeded_uids(self, operation_id: str, operation_uid: str) -> bool:
        """Read what a finished operation has seeded. False while it is not finished."""
        pending = self._informers.unfinished_operations.store.get(self._operation_store.key(operation_id))
        if pending is not None and pending.metadata.uid == operation_uid:
            return False
        found = await self._operation_store.find(operation_id)
        known = found is not None and found.metadata.uid == operation_uid
        if found is not None and known and not is_finished(found.status):
            return False
        if len(self._seeded_uids) >= MAX_CACHED_SEEDINGS:
            self._seeded_uids.clear()
        self._seeded_uids[operation_uid] = frozenset(found.status.stock_uids) if found is not None and known else None
        return True


def _from_random_offset(stock: list[GPUUnit]) -> Iterator[GPUUnit]:
    """All of it, beginning at random, so that replicas seldom choose the same. A shuffle would cost more than the rest
    of the choice."""
    start = random.randrange(len(stock)) if stock else 0  # noqa: S311 - no secret
    return chain(islice(stock, start, None), islice(stock, start))


def is_claimable(unit: GPUUnit) -> bool:
    """Whether a stock unit may be claimed: its GPUs are held, and nobody else is taking it."""
    return (
        unit.status.phase == UnitPhase.READY.value
        and unit.metadata.deletion_timestamp is None
        and Annotation.CLAIMED_BY not in unit.metadata.annotations
    )
