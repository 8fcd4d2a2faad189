"""Seeds and lists stock units, with their HTTP routes. The handoff claims stock units."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.operation import OperationTarget
from gpu_runtime.contract.errors import AdmissionDenied, OperationReused, QuotaExceeded
from gpu_runtime.contract.operation_rules import is_claimed, is_finished
from gpu_runtime.runtime_api.api_informers import APIInformers
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, Scope
from gpu_runtime.runtime_api.jobs.view import JobView, job_view
from gpu_runtime.runtime_api.operations.drive import OperationRunner
from gpu_runtime.runtime_api.operations.operation_store import RecordedOperation
from gpu_runtime.runtime_api.stock.requests import ListStock, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_seed
from gpu_runtime.runtime_api.stock.view import StockUnitView, phase_of, stock_unit_view

STOCK_UNITS_PATH = "/api/v1/operator/stock-units"


@dataclass(frozen=True)
class StockUnitService:
    informers: APIInformers
    operations: OperationRunner
    namespace: str
    """The namespace of the stock units."""

    async def seed(self, request: SeedStock) -> RecordedOperation:
        target = OperationTarget(kind=GPU_UNITS.kind, namespace=self.namespace)
        recorded = await self.operations.store.record(admit_seed(request), target)
        if not is_finished(recorded.operation):
            self.operations.enqueue(recorded.operation)
        return recorded

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
)
async def seed_stock(stock: StockUnitService, request: APIRequest[SeedStock, NoQuery]) -> APIResponse:
    """Seed stock units.

    Creates all stock units or none. 202: the request was accepted, and the response contains its job, which shows
    the progress. 200: the same request was accepted before, and the response contains its job.
    """
    recorded = await stock.seed(request.body)
    return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))


@STOCK_UNITS.route("GET", STOCK_UNITS_PATH, {200: list[StockUnitView]})
async def list_stock_units(stock: StockUnitService, request: APIRequest[None, ListStock]) -> APIResponse:
    """List stock units."""
    units, continuation = stock.list(request.query)
    return APIResponse(200, units, continuation)
