"""Seeding: all the stock that an operation asks for, or none of it.

The record is written after every batch, with the UIDs of the stock that is there so far: whoever goes on begins after
it. Stock cannot be claimed before its operation has succeeded, so nothing that was consumed is made again.
"""

import asyncio
import contextlib
from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.errors import Conflict
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import Client
from gpu_runtime.runtime_api import gather_bounded
from gpu_runtime.runtime_api.api_informers import Caches
from gpu_runtime.runtime_api.kube_error_mapping import refuses_for_good
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.operations.request_codec import recorded
from gpu_runtime.runtime_api.operations.state_machine import Steps
from gpu_runtime.runtime_api.stock.stock_manifests import SEED_REQUEST, stock_key, stock_manifest, was_made_by

BATCH = 100
"""How many are made from one write of the record to the next."""
AT_ONCE = 8
"""How many requests this replica has under way at a time, whatever the number of seedings."""


class Seeding:
    def __init__(self, client: Client, caches: Caches, ledger: Ledger) -> None:
        self._client = client
        self._caches = caches
        self._ledger = ledger
        self._turns = asyncio.Semaphore(AT_ONCE)
        self._steps = Steps(ledger, self._make_batch, self._undo)

    async def carry(self, operation: Operation) -> Operation:
        return await self._steps.carry(operation)

    async def _make_batch(self, operation: Operation) -> Operation:
        wanted, known = _wanted(operation), operation.status.stock_uids
        missing = range(len(known), min(len(known) + BATCH, wanted))
        made = await gather_bounded.each(self._turns, lambda index: self._make(operation, index), missing)
        uids = (*known, *(unit.metadata.uid for unit in _all_made(made)))
        if len(uids) < wanted:
            return await self._ledger.advance(operation, stock_uids=uids)
        return await self._ledger.succeed(operation, stock_uids=uids)

    async def _make(self, operation: Operation, index: int) -> GPUUnit:
        """The stock unit with this number, made now or earlier by the same operation."""
        while True:
            try:
                made = await self._client.create(GPU_UNITS, stock_manifest(operation, index))
            except kube.AlreadyExists:
                found = await self._find(operation, index)
            else:
                self._caches.units.learn(made)
                return made
            if found is not None:  # else it was deleted in between
                return _own(found, operation)

    async def _undo(self, operation: Operation) -> None:
        every = range(_wanted(operation))
        removed = await gather_bounded.each(self._turns, lambda index: self._remove(operation, index), every)
        _raise_gravest(removed)

    async def _remove(self, operation: Operation, index: int) -> None:
        found = await self._find(operation, index)
        if found is None or not was_made_by(found, operation):
            return
        with contextlib.suppress(kube.NotFound, kube.Conflict):  # somebody else removed it
            await self._client.delete(GPU_UNITS, found.metadata.key, uid=found.metadata.uid)
        self._caches.units.forget(found.metadata.key, found.metadata.uid)

    async def _find(self, operation: Operation, index: int) -> GPUUnit | None:
        try:
            return await self._client.get(GPU_UNITS, stock_key(operation, index))
        except kube.NotFound:
            return None


def _wanted(operation: Operation) -> int:
    return recorded(operation, SEED_REQUEST).replicas


def _own(found: GPUUnit, operation: Operation) -> GPUUnit:
    if not was_made_by(found, operation):
        raise Conflict(
            f"there is already a unit {found.metadata.key} that this operation did not make; choose a new operationID"
        )
    return found


def _all_made(results: Iterable[GPUUnit | BaseException]) -> list[GPUUnit]:
    results = list(results)
    _raise_gravest(results)
    return [result for result in results if not isinstance(result, BaseException)]


def _raise_gravest(results: Iterable[object]) -> None:
    """What can never succeed decides over what may succeed on another try."""
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise next(filter(_is_final, failures), failures[0])


def _is_final(failure: BaseException) -> bool:
    return isinstance(failure, Conflict) or (isinstance(failure, kube.KubeError) and refuses_for_good(failure))
