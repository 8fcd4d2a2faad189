"""Creates the stock units of a seed operation: all of them, or none. `seed_decision` decides every step.

No handoff can claim a stock unit before its seed operation has succeeded. So the seeder never creates a consumed stock
unit again.
"""

import asyncio
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.well_known import stock_unit_name
from gpu_runtime.contract.errors import AlreadyExists, Conflict
from gpu_runtime.contract.operation_rules import Ownership, owned_manifest, ownership
from gpu_runtime.contract.operation_transitions import Transition
from gpu_runtime.contract.recorded_requests import RecordedSeedRequest, recorded_request
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.live_objects import create_or_read, delete_this, read_live
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.process.gather_bounded import gather_bounded
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.kube_error_mapping import is_permanent_rejection, permanent_fault
from gpu_runtime.runtime_api.operations.drive import OperationDriver
from gpu_runtime.runtime_api.stock.seed_decision import CreateStock, DeleteStock, ObservedSeeding, decide_seeding

MAX_CONCURRENT_SEED_REQUESTS = 8
"""Maximum number of concurrent requests to the API server, over all seed operations of this replica."""
T = TypeVar("T")


class StockSeeder:
    def __init__(self, client: KubeClient, informers: APIInformers, driver: OperationDriver) -> None:
        self._client = client
        self._units = informers.units
        self._driver = driver
        self._semaphore = asyncio.Semaphore(MAX_CONCURRENT_SEED_REQUESTS)

    async def resume(self, operation: Operation) -> Operation:
        request = recorded_request(operation, RecordedSeedRequest)
        return await self._driver.drive(operation, partial(self._step, request))

    async def _step(self, request: RecordedSeedRequest, operation: Operation) -> Operation:
        observed = ObservedSeeding()
        while not isinstance(action := decide_seeding(operation, request, observed), Transition):
            match action:
                case CreateStock(indexes):
                    observed = await self._create_batch(operation, request, indexes)
                case DeleteStock(indexes):
                    await self._for_each(indexes, partial(self._delete_unit, operation))
                    observed = ObservedSeeding(is_undone=True)
        return await self._driver.store.write(operation, action)

    async def _create_batch(
        self, operation: Operation, request: RecordedSeedRequest, indexes: range
    ) -> ObservedSeeding:
        try:
            await self._delete_returned(request)
            units = await self._for_each(indexes, partial(self._create_unit, operation, request))
        except Conflict as conflict:
            return ObservedSeeding(rejection=conflict)
        except KubeError as error:
            return ObservedSeeding(rejection=permanent_fault(error))
        return ObservedSeeding(created_uids=tuple(unit.metadata.uid for unit in units))

    async def _delete_returned(self, request: RecordedSeedRequest) -> None:
        if returned := request.returned_from:
            await delete_this(self._client, self._units, ObjectKey(returned.namespace, returned.name), returned.uid)

    async def _create_unit(self, operation: Operation, request: RecordedSeedRequest, index: int) -> GPUUnit:
        """Create the stock unit with this index, or return the one that this operation created before."""
        key = stock_key(operation, index)
        manifest = owned_manifest(operation, key, request.unit_spec())
        unit, _ = await create_or_read(self._client, self._units, manifest)
        if ownership(operation, unit) is Ownership.FOREIGN:
            raise AlreadyExists(f"unit {key} already exists and belongs to another operation; choose a new operationID")
        return unit

    async def _delete_unit(self, operation: Operation, index: int) -> None:
        unit = await read_live(self._client, self._units, stock_key(operation, index))
        if unit is not None and ownership(operation, unit) is Ownership.ORPHANED:
            await delete_this(self._client, self._units, unit.metadata.key, unit.metadata.uid)

    async def _for_each(self, indexes: range, work: Callable[[int], Awaitable[T]]) -> list[T]:
        """Run the work for every index. Raise a permanent failure if there is one, otherwise the first failure.

        After a failure that is not permanent, a retry may succeed.
        """
        results = await gather_bounded(self._semaphore, work, indexes)
        failures = [result for result in results if isinstance(result, BaseException)]
        if failures:
            raise next(filter(_is_permanent, failures), failures[0])
        return [result for result in results if not isinstance(result, BaseException)]


def stock_key(operation: Operation, index: int) -> ObjectKey:
    return ObjectKey(operation.spec.target.namespace, stock_unit_name(operation.spec.operation_id, index))


def _is_permanent(failure: BaseException) -> bool:
    return isinstance(failure, Conflict) or (isinstance(failure, KubeError) and is_permanent_rejection(failure))
