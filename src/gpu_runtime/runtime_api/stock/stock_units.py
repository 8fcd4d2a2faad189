"""Stock units for operators: seed some, see what there is. Units take stock elsewhere."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec import UNSET

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationType, Target
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Invalid, OperationReused
from gpu_runtime.runtime_api.api_informers import FLAVOUR, Caches, flavour
from gpu_runtime.runtime_api.http.paging import page
from gpu_runtime.runtime_api.http.route import Answer, Call, NoQuery, Route, Scope
from gpu_runtime.runtime_api.kube_error_mapping import in_product_words
from gpu_runtime.runtime_api.operations.jobs import JobView, job_view
from gpu_runtime.runtime_api.operations.operation_store import Ledger, Recorded, is_finished
from gpu_runtime.runtime_api.stock.requests import ListStock, SeedStock
from gpu_runtime.runtime_api.stock.stock_admission import accepted_seed
from gpu_runtime.runtime_api.stock.view import StockUnitView, phase_of, stock_unit_view

PATH = "/api/v1/operator/stock-units"


@dataclass(frozen=True)
class StockUnits:
    caches: Caches
    ledger: Ledger
    namespace: str
    """Where stock is."""
    begin: Callable[[Operation], None]
    """Works on an operation after the answer."""

    async def seed(self, request: SeedStock) -> Recorded:
        asked = accepted_seed(request)
        target = Target(kind="GPUUnit", namespace=self.namespace)
        with in_product_words():
            recorded = await self.ledger.record(OperationType.SEED_STOCK, asked.operation_id, asked, target)
        if not is_finished(recorded.operation.status):
            self.begin(recorded.operation)
        return recorded

    def list(self, query: ListStock) -> tuple[list[StockUnitView], str | None]:
        found = [unit for unit in self._known(query.spec_name) if _is_asked_for(unit, query)]
        units, continuation = page(found, lambda unit: unit.metadata.key, query.limit, query.after)
        return [stock_unit_view(unit, self.caches.node_of(unit)) for unit in units], continuation

    def _known(self, spec_name: str) -> Sequence[GPUUnit]:
        if spec_name:
            return self.caches.units.store.by(FLAVOUR, flavour(self.namespace, spec_name))
        return [unit for unit in self.caches.units.store.all() if unit.metadata.namespace == self.namespace]


def _is_asked_for(unit: GPUUnit, query: ListStock) -> bool:
    claimed = Annotation.CLAIMED_BY in unit.metadata.annotations
    return query.phase in (UNSET, phase_of(unit)) and query.claimed in (UNSET, claimed)


def routes(stock: StockUnits) -> Sequence[Route]:
    async def seed_stock(call: Call[SeedStock, NoQuery]) -> Answer:
        recorded = await stock.seed(call.body)
        return Answer(202 if recorded.new else 200, job_view(recorded.operation))

    async def list_stock(call: Call[None, ListStock]) -> Answer:
        units, continuation = stock.list(call.query)
        return Answer(200, units, continuation)

    return (
        Route(
            "POST",
            PATH,
            "seedStock",
            "Seed stock units",
            seed_stock,
            answers={202: JobView, 200: JobView},
            faults=(Invalid, OperationReused),
            scope=Scope.OPERATOR,
            body=SeedStock,
            description="All of the stock is made, or none of it. 202: accepted, the job tells how it goes on."
            " 200: the same request was accepted before, and this is its job.",
            examples={"two reservations of g1.1": EXAMPLE},
            tag="Stock",
        ),
        Route(
            "GET",
            PATH,
            "listStockUnits",
            "List stock units",
            list_stock,
            answers={200: list[StockUnitView]},
            faults=(Invalid,),
            scope=Scope.OPERATOR,
            query=ListStock,
            tag="Stock",
        ),
    )


EXAMPLE: dict[str, Any] = {
    "operationID": "stock-g1-demo-001",
    "specName": "g1.1",
    "memory": "16Gi",
    "gpu": 1,
    "replicas": 2,
}
