"""Seeds and lists stock units, with their HTTP routes. The handoff claims stock units."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationTarget, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AdmissionDenied, Invalid, OperationReused, QuotaExceeded
from gpu_runtime.runtime_api.api_informers import FLAVOR_INDEX, APIInformers, flavor_key
from gpu_runtime.runtime_api.http.paging import paginate
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, Scope
from gpu_runtime.runtime_api.kube_error_mapping import translate_kube_errors
from gpu_runtime.runtime_api.operations.jobs import JobView, job_view
from gpu_runtime.runtime_api.operations.operation_store import OperationStore, RecordedOperation, is_finished
from gpu_runtime.runtime_api.stock.requests import ListStock, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import admit_seed
from gpu_runtime.runtime_api.stock.view import StockUnitView, phase_of, stock_unit_view

STOCK_UNITS_PATH = "/api/v1/operator/stock-units"


@dataclass(frozen=True)
class StockUnitService:
    informers: APIInformers
    operation_store: OperationStore
    namespace: str
    """The namespace of the stock units."""
    enqueue: Callable[[Operation], None]
    """Executes the operation in the background, after the response."""

    async def seed(self, request: SeedStock) -> RecordedOperation:
        admitted = admit_seed(request)
        target = OperationTarget(kind="GPUUnit", namespace=self.namespace)
        with translate_kube_errors():
            recorded = await self.operation_store.record(
                OperationType.SEED_STOCK, admitted.operation_id, admitted, target
            )
        if not is_finished(recorded.operation.status):
            self.enqueue(recorded.operation)
        return recorded

    def list(self, query: ListStock) -> tuple[list[StockUnitView], str | None]:
        matching = [unit for unit in self._cached_units(query.spec_name) if _matches(unit, query)]
        units, continuation = paginate(matching, lambda unit: unit.metadata.key, query.limit, query.after)
        return [stock_unit_view(unit, self.informers.node_of(unit)) for unit in units], continuation

    def _cached_units(self, spec_name: str) -> Sequence[GPUUnit]:
        if spec_name:
            return self.informers.units.store.by_index(FLAVOR_INDEX, flavor_key(self.namespace, spec_name))
        return [unit for unit in self.informers.units.store.all() if unit.metadata.namespace == self.namespace]


def _matches(unit: GPUUnit, query: ListStock) -> bool:
    claimed = Annotation.CLAIMED_BY in unit.metadata.annotations
    return query.phase in (UNSET, phase_of(unit)) and query.claimed in (UNSET, claimed)


def routes(stock: StockUnitService) -> Sequence[Route]:
    async def seed_stock(request: APIRequest[SeedStock, NoQuery]) -> APIResponse:
        recorded = await stock.seed(request.body)
        return APIResponse(202 if recorded.new else 200, job_view(recorded.operation))

    async def list_stock(request: APIRequest[None, ListStock]) -> APIResponse:
        units, continuation = stock.list(request.query)
        return APIResponse(200, units, continuation)

    return (
        Route(
            "POST",
            STOCK_UNITS_PATH,
            "seedStock",
            "Seed stock units",
            seed_stock,
            responses={202: JobView, 200: JobView},
            faults=(Invalid, OperationReused, QuotaExceeded, AdmissionDenied),
            scope=Scope.OPERATOR,
            body=SeedStock,
            description="Creates all stock units or none. 202: the request was accepted, and the response contains its"
            " job, which shows the progress. 200: the same request was accepted before, and the response contains its"
            " job.",
            examples={"two reservations of g1.1": SEED_EXAMPLE},
            tag="Stock",
        ),
        Route(
            "GET",
            STOCK_UNITS_PATH,
            "listStockUnits",
            "List stock units",
            list_stock,
            responses={200: list[StockUnitView]},
            faults=(Invalid,),
            scope=Scope.OPERATOR,
            query=ListStock,
            tag="Stock",
        ),
    )


SEED_EXAMPLE: dict[str, Any] = {
    "operationID": "stock-g1-demo-001",
    "specName": "g1.1",
    "memory": "16Gi",
    "gpu": 1,
    "replicas": 2,
}
