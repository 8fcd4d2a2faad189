"""Creates the stock units of a seed operation: all of them, or none.

The seeder writes the UIDs of the created stock units into the Operation after every batch, so that a resumed operation
continues after the last batch. No handoff can claim a stock unit before its seed operation has succeeded. So the seeder
never creates a consumed stock unit again.
"""

import asyncio
import contextlib
from collections.abc import Iterable

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.errors import AlreadyExists, Conflict
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
"""Maximum number of stock units that are created between two status updates of the Operation."""
MAX_CONCURRENT_SEED_REQUESTS = 8
"""Maximum number of concurrent requests to the API server, over all seed operations of this replica."""


class StockSeeder:
    def __init__(self, client: KubeClient, informers: APIInformers, operation_store: OperationStore) -> None:
        self._client = client
        self._informers = informers
        self._operation_store = operation_store
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_SEED_REQUESTS)
        self._state_machine = OperationStateMachine(operation_store, self._create_batch, self._undo)

    async def resume(self, operation: Operation) -> Operation:
        return await self._state_machine.resume(operation)

    async def _create_batch(self, operation: Operation) -> Operation:
        desired, recorded = _desired_count(operation), operation.status.stock_uids
        missing = range(len(recorded), min(len(recorded) + SEED_BATCH_SIZE, desired))
        results = await gather_bounded.gather_bounded(
            self._semaphore, lambda index: self._create_unit(operation, index), missing
        )
        uids = (*recorded, *(unit.metadata.uid for unit in _created_units(results)))
        if len(uids) < desired:
            return await self._operation_store.update_status(operation, stock_uids=uids)
        return await self._operation_store.mark_succeeded(operation, stock_uids=uids)

    async def _create_unit(self, operation: Operation, index: int) -> GPUUnit:
        """Create the stock unit with this index, or return the one that this operation created before."""
        while True:
            try:
                created = await self._client.create(GPU_UNITS, stock_manifest(operation, index))
            except kube.KubeAlreadyExists:
                existing = await self._find_unit(operation, index)
            else:
                self._informers.units.record_write(created)
                return created
            if existing is not None:  # None: the stock unit was deleted in the meantime, so create it again
                return _require_created_by(existing, operation)

    async def _undo(self, operation: Operation) -> None:
        indexes = range(_desired_count(operation))
        results = await gather_bounded.gather_bounded(
            self._semaphore, lambda index: self._delete_unit(operation, index), indexes
        )
        _raise_most_severe(results)

    async def _delete_unit(self, operation: Operation, index: int) -> None:
        unit = await self._find_unit(operation, index)
        if unit is None or not is_created_by(unit, operation):
            return
        with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):  # another replica deleted it
            await self._client.delete(GPU_UNITS, unit.metadata.key, uid=unit.metadata.uid)
        self._informers.units.record_delete(unit.metadata.key, unit.metadata.uid)

    async def _find_unit(self, operation: Operation, index: int) -> GPUUnit | None:
        try:
            return await self._client.get(GPU_UNITS, stock_key(operation, index))
        except kube.KubeNotFound:
            return None


def _desired_count(operation: Operation) -> int:
    return decode_request(operation, SEED_REQUEST_DECODER).replicas


def _require_created_by(existing: GPUUnit, operation: Operation) -> GPUUnit:
    if not is_created_by(existing, operation):
        raise AlreadyExists(
            f"unit {existing.metadata.key} already exists and belongs to another operation; choose a new operationID"
        )
    return existing


def _created_units(results: Iterable[GPUUnit | BaseException]) -> list[GPUUnit]:
    results = list(results)
    _raise_most_severe(results)
    return [result for result in results if not isinstance(result, BaseException)]


def _raise_most_severe(results: Iterable[object]) -> None:
    """Raise a permanent failure if there is one, otherwise the first failure.

    After a failure that is not permanent, a retry may succeed.
    """
    failures = [result for result in results if isinstance(result, BaseException)]
    if failures:
        raise next(filter(_is_permanent, failures), failures[0])


def _is_permanent(failure: BaseException) -> bool:
    return isinstance(failure, Conflict) or (isinstance(failure, kube.KubeError) and is_permanent_rejection(failure))
