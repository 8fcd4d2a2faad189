"""Prometheus metrics of create requests: the stock that they use, and refused requests."""

from collections.abc import Mapping
from enum import StrEnum

from prometheus_client import CollectorRegistry, Counter

from gpu_runtime.contract.crd.operation import SourceStock
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss

MAX_SPEC_NAMES = 500
OTHER_SPEC_NAMES = "other"
"""The label value of further flavors. Callers choose specName, so the number of label values must be bounded."""


class CreateRefusal(StrEnum):
    """Why a create request gets 429 although its caller does not exceed its rate."""

    QUEUE_FULL = "queue_full"
    """The caller has too many create requests that wait for their turn."""
    TOO_MANY_WAITING = "too_many_waiting"
    """The caller has too many operations that wait for stock."""


class CreateMetrics:
    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.refused = Counter(
            "gpu_runtime_creates_refused",
            "Number of create requests that got 429 because of a limit per caller, by reason: queue_full"
            " (limits.maxQueuedCreatesPerCaller) or too_many_waiting (operations.maxWaitingPerCaller)",
            ["reason"],
            registry=registry,
        )


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
        self.taken.labels(self._label(spec_name), StockGrade.of_source(stock.pool).value).inc()
        if stock.missed:
            self.missed.labels(self._label(spec_name), StockGrade.PREPARED.value, stock.missed).inc()

    def count_refused(self, spec_name: str, missed: Mapping[StockGrade, StockMiss]) -> None:
        for grade, reason in missed.items():
            self.missed.labels(self._label(spec_name), grade.value, reason.value).inc()

    def _label(self, spec_name: str) -> str:
        if len(self._spec_names) < MAX_SPEC_NAMES:
            self._spec_names.add(spec_name)
        return spec_name if spec_name in self._spec_names else OTHER_SPEC_NAMES
