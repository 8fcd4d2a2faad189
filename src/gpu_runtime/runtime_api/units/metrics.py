"""Prometheus metrics of the stock that create requests use."""

from collections.abc import Mapping

from prometheus_client import CollectorRegistry, Counter

from gpu_runtime.contract.crd.operation import SourceStock
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss

MAX_SPEC_NAMES = 500
OTHER_SPEC_NAMES = "other"
"""The label value of further flavors. Callers choose specName, so the number of label values must be bounded."""


class StockMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self._spec_names: set[str] = set()
        self.taken = Counter(
            "gpu_runtime_stock_taken",
            "Number of units that were created from stock, by flavor and by grade of the stock",
            ["spec_name", "grade"],
            registry=registry,
        )
        self.missed = Counter(
            "gpu_runtime_stock_missed",
            "Number of create requests that did not use stock of a grade, by flavor, grade and reason",
            ["spec_name", "grade", "reason"],
            registry=registry,
        )

    def count_created(self, spec_name: str, stock: SourceStock) -> None:
        grade = StockGrade.PREPARED if stock.is_prepared else StockGrade.RESERVED
        self.taken.labels(self._label(spec_name), grade.value).inc()
        if stock.missed:
            self.missed.labels(self._label(spec_name), StockGrade.PREPARED.value, stock.missed).inc()

    def count_refused(self, spec_name: str, missed: Mapping[StockGrade, StockMiss]) -> None:
        for grade, reason in missed.items():
            self.missed.labels(self._label(spec_name), grade.value, reason.value).inc()

    def _label(self, spec_name: str) -> str:
        if len(self._spec_names) < MAX_SPEC_NAMES:
            self._spec_names.add(spec_name)
        return spec_name if spec_name in self._spec_names else OTHER_SPEC_NAMES
