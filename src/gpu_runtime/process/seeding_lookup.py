"""Finds out whether a handoff may claim a stock unit, from the operation that seeded it.

The outcome of a finished seeding never changes, so each finished seeding is read only once.
"""

from collections.abc import Awaitable, Callable

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import AnyOperation
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.operation_rules import Seeding, StockState, seeding_of, stock_state

MAX_CACHED_SEEDINGS = 1024
"""Maximum number of finished seed operations in the cache. Each cache miss costs one read from the API server."""

FindOperation = Callable[[str, str], Awaitable[AnyOperation | None]]
"""Returns the current operation with this operationID. The second argument is the UID that the caller expects."""


class SeedingLookup:
    def __init__(self, find: FindOperation) -> None:
        self._find = find
        self._finished: dict[str, Seeding] = {}
        """Finished seedings by the UID of their operation."""

    async def stock_state(self, unit: GPUUnit) -> StockState:
        state = stock_state(unit, Seeding())
        if state is not StockState.FREE:  # the seeding does not matter
            return state
        return stock_state(unit, await self._seeding(unit))

    async def _seeding(self, unit: GPUUnit) -> Seeding:
        annotations = unit.metadata.annotations
        operation_id = annotations.get(Annotation.OPERATION_ID, "")
        uid = annotations.get(Annotation.OPERATION_UID, "")
        if not operation_id or not uid:
            return Seeding()  # an administrator created the stock unit without an operation
        if uid in self._finished:
            return self._finished[uid]
        seeding = seeding_of(await self._find(operation_id, uid), uid)
        if not seeding.is_running:
            if len(self._finished) >= MAX_CACHED_SEEDINGS:
                self._finished.clear()
            self._finished[uid] = seeding
        return seeding
