"""Returns the stock of a worker, with the HTTP route: deletes the worker and seeds a stock unit in its place.

Users of a namespace can write the spec and the annotations of a unit, so they are no proof. The proof is the Operation,
which only the runtime API writes: it has committed to the UID of the worker, and names the consumed stock unit. The new
stock unit has the flavor and the reservation of this Operation.

One operation returns the stock, and it deletes the worker before it commits. So the stock of a worker is returned at
most once: a return needs an existing worker, and the operation stays until the worker is deleted.
"""

from dataclasses import dataclass
from typing import Any

from msgspec import field

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import Operation, OperationID, OperationTarget, OperationType
from gpu_runtime.contract.crd.reservation import reservation_fields
from gpu_runtime.contract.crd.well_known import return_operation_id
from gpu_runtime.contract.errors import NoStockToReturn, Unavailable
from gpu_runtime.contract.operation_rules import OperationProgress, has_succeeded, is_finished, progress_of
from gpu_runtime.contract.recorded_requests import (
    RecordedSeedRequest,
    RecordedUnitRequest,
    ReturnedUnit,
    recorded_request,
)
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.live_objects import read_live
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.route import (
    ANONYMOUS,
    SMALL_MAX_BODY_BYTES,
    APIRequest,
    APIResponse,
    Body,
    NoQuery,
    RouteGroup,
    Scope,
)
from gpu_runtime.runtime_api.jobs.view import JobView, job_view
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import RecordedOperation

STOCK_RETURNS_PATH = "/api/v1/operator/stock-returns"


class ReturnStock(Body, frozen=True, kw_only=True):
    """A worker whose stock is to be returned."""

    operation_id: OperationID = field(name="operationID")
    """The ID of the operation that created the worker."""

    unit_uid: str = field(name="unitUID")
    """The UID of the worker."""


@dataclass(frozen=True)
class StockReturnService:
    client: KubeClient
    informers: APIInformers
    operations: OperationRunner
    namespace: str
    """The namespace of the stock units."""

    async def return_stock(self, request: ReturnStock, caller: str = ANONYMOUS.name) -> RecordedOperation:
        """Record the operation that returns the stock, or find it. Raises NoStockToReturn."""
        existing = await self.operations.store.find(return_operation_id(request.unit_uid))
        recorded = RecordedOperation(existing, new=False) if existing else await self._record(request, caller)
        if not is_finished(recorded.operation):
            self.operations.enqueue(recorded.operation)
        return recorded

    async def _record(self, request: ReturnStock, caller: str) -> RecordedOperation:
        creation = await self.operations.store.find(request.operation_id)
        seeding = seeding_in_return(creation, request.unit_uid)
        await self._require_existing(seeding.returned_from)
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=self.namespace)
        return await self.operations.store.record(seeding, target, caller=caller)

    async def _require_existing(self, returned: ReturnedUnit | None) -> None:
        """Raise NoStockToReturn if the unit is deleted. Otherwise an evicted return could be repeated."""
        if returned is None:
            return
        unit = await read_live(self.client, self.informers.units, ObjectKey(returned.namespace, returned.name))
        if unit is None or unit.metadata.uid != returned.uid:
            raise _no_proof(returned.uid, "the unit no longer exists")


def seeding_in_return(creation: Operation | None, unit_uid: str) -> RecordedSeedRequest:
    """Return the seeding that returns the stock of this worker. `creation` is the operation that created the worker.

    Raises NoStockToReturn if the operation is no proof, and Unavailable while the operation can still commit.
    """
    if creation is None or creation.spec.type != OperationType.CREATE_UNIT:
        raise _no_proof(unit_uid, "there is no operation with this operationID that creates a unit")
    if progress_of(creation) is OperationProgress.IN_PROGRESS:
        raise Unavailable(f"operation {creation.spec.operation_id} is not finished; send the same request again")
    stock = creation.status.stock
    if not has_succeeded(creation) or creation.status.target_uid != unit_uid or stock is None:
        raise _no_proof(unit_uid, f"operation {creation.spec.operation_id} has not created it from stock")
    if stock.is_prepared:
        raise _no_proof(unit_uid, "its pod came from a pool, which has already replaced the pod")
    request, key = recorded_request(creation, RecordedUnitRequest), creation.target_key
    if request.serverless is None or not request.serverless.worker_of:
        raise _no_proof(unit_uid, "it is not a worker")
    return RecordedSeedRequest(
        operation_id=return_operation_id(unit_uid),
        spec_name=request.spec_name,
        replicas=1,
        returned_from=ReturnedUnit(namespace=key.namespace, name=key.name, uid=unit_uid),
        **reservation_fields(stock),
    )


def _no_proof(unit_uid: str, reason: str) -> NoStockToReturn:
    return NoStockToReturn(f"unit {unit_uid} has no stock to return: {reason}; delete the unit")


STOCK_RETURNS = RouteGroup[StockReturnService]("Workers", Scope.WORKER)

RETURN_EXAMPLE: dict[str, Any] = {
    "operationID": "worker-demo-w0-5f2c9e1ab3d04467",
    "unitUID": "0b7a4f0e-6a64-4a0f-9a3e-0d7f1f6c2f11",
}


@STOCK_RETURNS.route(
    "POST",
    STOCK_RETURNS_PATH,
    {202: JobView, 200: JobView},
    faults=(NoStockToReturn,),
    examples={"the stock of a worker": RETURN_EXAMPLE},
    max_body_bytes=SMALL_MAX_BODY_BYTES,
)
async def return_stock(returns: StockReturnService, request: APIRequest[ReturnStock, NoQuery]) -> APIResponse:
    """Return the stock of a worker.

    Deletes the worker, and creates a stock unit with the flavor and the reservation of the stock that the worker was
    created from. 202: the request was accepted, and the response contains its job. 200: the stock was returned before,
    or is being returned. 409 no_stock_to_return: no committed operation created this worker from a stock
    unit, and nothing has changed.
    """
    recorded = await returns.return_stock(request.body, request.caller)
    return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))
