"""Seeds, lists and withdraws stock units, with their HTTP routes. The handoff claims stock units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import OperationTarget
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import (
    AdmissionDenied,
    NotFound,
    OperationReused,
    QuotaExceeded,
    StockClaimed,
    WriteConflict,
)
from gpu_runtime.contract.operation_rules import is_claimed, is_finished
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeNotFound
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.http.route import (
    ANONYMOUS,
    SMALL_MAX_BODY_BYTES,
    APIRequest,
    APIResponse,
    NoQuery,
    RouteGroup,
    Scope,
)
from gpu_runtime.runtime_api.jobs.view import JobView, job_view
from gpu_runtime.runtime_api.object_access import ObjectAccess
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import RecordedOperation
from gpu_runtime.runtime_api.stock.requests import ListStock, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_seed
from gpu_runtime.runtime_api.stock.view import StockUnitView, phase_of, stock_unit_view

STOCK_UNITS_PATH = "/api/v1/operator/stock-units"


@dataclass(frozen=True)
class StockUnitService:
    client: KubeClient
    informers: APIInformers
    operations: OperationRunner
    namespace: str
    """The namespace of the stock units."""

    async def seed(self, request: SeedStock, caller: str = ANONYMOUS.name) -> RecordedOperation:
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=self.namespace)
        recorded = await self.operations.store.record(admit_seed(request), target, caller=caller)
        if not is_finished(recorded.operation):
            self.operations.enqueue(recorded.operation)
        return recorded

    @property
    def _access(self) -> ObjectAccess[GPUUnit]:
        missing = "stock unit {name!r} does not exist"
        return ObjectAccess(self.client, self.informers.units, "stock unit", missing, (self.namespace,))

    async def withdraw(self, name: str) -> None:
        """Delete a stock unit that no handoff has claimed. The garbage collector deletes its pod."""
        key = self._access.key(self.namespace, name)
        await self.operations.finish_creator(await self._access.get_live(key))  # or the seeding would create it again
        await self._access.read_and_write(key, self._delete_unclaimed)

    async def _delete_unclaimed(self, unit: GPUUnit) -> None:
        """Delete the stock unit if it has not changed. Raises KubeConflict if it has, for example by a claim."""
        metadata = unit.metadata
        if is_claimed(unit):
            claimed_by = metadata.annotations[Annotation.CLAIMED_BY]
            raise StockClaimed(f"stock unit {metadata.name} is claimed by operation {claimed_by}; choose another one")
        try:
            await self.client.delete(
                GPU_UNITS, metadata.key, uid=metadata.uid, resource_version=metadata.resource_version
            )
        except KubeNotFound:  # a handoff may have consumed it, so this request has not withdrawn it
            raise NotFound(f"stock unit {metadata.name!r} does not exist") from None
        self.informers.units.record_delete(metadata.key, metadata.uid)

    def list(self, query: ListStock) -> tuple[list[StockUnitView], str | None]:
        matching = [unit for unit in self._cached_units(query.spec_name) if _matches(unit, query)]
        units, continuation = paginate(matching, lambda unit: unit.metadata.key, query.limit, query.after)
        return [stock_unit_view(unit, self.informers.node_of(unit)) for unit in units], continuation

    def _cached_units(self, spec_name: str) -> Sequence[GPUUnit]:
        if spec_name:
            return self.informers.stock_of(self.namespace, spec_name)
        return [unit for unit in self.informers.units.store.all() if unit.metadata.namespace == self.namespace]


def _matches(unit: GPUUnit, query: ListStock) -> bool:
    return query.phase in (UNSET, phase_of(unit)) and query.claimed in (UNSET, is_claimed(unit))


STOCK_UNITS = RouteGroup[StockUnitService]("Stock", Scope.OPERATOR)

SEED_EXAMPLE: dict[str, Any] = {
    "operationID": "stock-g1-demo-001",
    "specName": "g1.1",
    "memory": "16Gi",
    "gpu": 1,
    "replicas": 2,
}


@STOCK_UNITS.route(
    "POST",
    STOCK_UNITS_PATH,
    {202: JobView, 200: JobView},
    faults=(OperationReused, QuotaExceeded, AdmissionDenied),
    examples={"two reservations of g1.1": SEED_EXAMPLE},
    max_body_bytes=SMALL_MAX_BODY_BYTES,
)
async def seed_stock(stock: StockUnitService, request: APIRequest[SeedStock, NoQuery]) -> APIResponse:
    """Seed stock units.

    Creates all stock units or none. 202: the request was accepted, and the response contains its job, which shows
    the progress. 200: the same request was accepted before, and the response contains its job.
    """
    recorded = await stock.seed(request.body, request.caller)
    return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))


@STOCK_UNITS.route("GET", STOCK_UNITS_PATH, {200: list[StockUnitView]})
async def list_stock_units(stock: StockUnitService, request: APIRequest[None, ListStock]) -> APIResponse:
    """List stock units."""
    units, continuation = stock.list(request.query)
    return APIResponse(200, units, continuation)


@STOCK_UNITS.route("DELETE", STOCK_UNITS_PATH + "/{name}", {204: None}, faults=(NotFound, StockClaimed, WriteConflict))
async def withdraw_stock_unit(stock: StockUnitService, request: APIRequest[None, NoQuery]) -> APIResponse:
    """Withdraw a stock unit.

    Deletes a stock unit that no create request has claimed. Its GPUs become free. The API does not seed it again.
    """
    await stock.withdraw(request.path["name"])
    return APIResponse(204)
