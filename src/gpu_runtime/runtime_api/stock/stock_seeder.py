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
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.runtime_api import gather_bounded
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.kube_error_mapping import is_permanent_rejection
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.request_codec import decode_request
from gpu_runtime.runtime_api.operations.state_machine import OperationStateMachine
from gpu_runtime.runtime_api.stock.stock_manifests import SEED_REQUEST_DECODER, is_created_by, stock_key, stock_manifest

SEED_BATCH_SIZE = 100
"""How many are made from one write of the record to the next."""
MAX_CONCURRENT_SEED_REQUESTS = 8
"""How many requests this replica has under way at a time, whatever the number of seedings."""


class StockSeeder:
    def __init__(self, client: KubeClient, caches: APIInformers, ledger: OperationStore) -> None:
        self._client = client
        self._informers = caches
        self._operation_store = ledger
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_SEED_REQUESTS)
        self._state_machine = OperationStateMachine(ledger, self._create_batch, self._undo)

    async def resume(self, operation: Operation) -> Operation:
        return await self._state_machine.resume(operation)

    async def _create_batch(self, operation: Operation) -> Operation:
        wanted, known = _desired_count(operation), operation.status.stock_uids
        missing = range(len(known), min(len(known) + SEED_BATCH_SIZE, wanted))
        made = await gather_bounded.gather_bounded(
            self._semaphore, lambda index: self._create_unit(operation, index), missing
        )
        uids = (*known, *(unit.metadata.uid for unit in _created_units(made)))
        if len(uids) < wanted:
            return await self._operation_store.update_status(operation, stock_uids=uids)
        return await self._operation_store.mark_succeeded(operation, stock_uids=uids)

    async def _create_unit(self, operation: Operation, index: int) -> GPUUnit:
        """The stock unit with this number, made now or earlier by the same operation."""
        while True:
            try:
                made = await self._client.create(GPU_UNITS, stock_manifest(operation, index))
            except kube.KubeAlreadyExists:
                found = await self._find_unit(operation, index)
            else:
                self._informers.units.record_write(made)
                return made
            if found is not None:  # else it was deleted in between
                return _require_created_by(found, operation)

    async def _undo(self, operation: Operation) -> None:
        every = range(_desired_count(operation))
        removed = await gather_bounded.gather_bounded(
            self._semaphore, lambda index: self._delete_unit(operation, index), every
        )
        _raise_most_severe(removed)

    async def _delete_unit(self, operation: Operation, index: int) -> None:
        found = await self._find_unit(operation, index)
        if found is None or not is_created_by(found, operation):
            return
        with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):  # somebody else removed it
            await self._client.delete(GPU_UNITS, found.metadata.key, uid=found.metadata.uid)
        self._informers.units.record_delete(found.metadata.key, found.metadata.uid)

    async def _find_unit(self, operation: Operation, index: int) -> GPUUnit | None:
        try:
            return await self._client.get(GPU_UNITS, stock_key(operation, index))
        except kube.KubeNotFound:
            return None


def _desired_count(operation: Operation) -> int:
    return decode_request(operation, SEED_REQUEST_DECODER).replicas


def _require_created_by(found: GPUUnit, operation: Operation) -> GPUUnit:
    if not is_created_by(found, operation):
        raise Conflict(
            f"there is already a unit {found.metadata.key} that this operation did not make; choose a new operationID"
        )
    return found


def _created_units(results: Iterable[GPUUnit | BaseException]) -> list[GPUUnit]:
    results = list(results)
    _raise_most_severe(results)
    return [result for result in results if not isinstance(result, BaseException)]


def _raise_most_severe(results: Iterable[object]) -> None:
    """What can never succeed decides over what may succeed on another try."""
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise next(filter(_is_permanent, failures), failures[0])


def _is_permanent(failure: BaseException) -> bool:
    return isinstance(failure, Conflict) or (isinstance(failure, kube.KubeError) and is_permanent_rejection(failure))
