"""Limits how many operations of one caller wait for stock. Decides from the cache of this replica, without I/O.

Each create request that finds no stock leaves an Operation, so that its operationID stays bound to its content. The
limit bounds how many operations one caller can store in this way. A cache may lack the newest operations, so the limit
is approximate.
"""

from dataclasses import dataclass, field

from gpu_runtime.contract.errors import TooManyWaiting
from gpu_runtime.contract.operation_rules import OperationProgress, progress_of
from gpu_runtime.runtime_api.api_informers import CALLER_INDEX, APIInformers
from gpu_runtime.runtime_api.units.metrics import CreateMetrics, CreateRefusal

DEFAULT_MAX_WAITING_PER_CALLER = 1000
WAITING_RETRY_SECONDS = 10.0


@dataclass(frozen=True)
class WaitingLimit:
    max_per_caller: int = DEFAULT_MAX_WAITING_PER_CALLER
    metrics: CreateMetrics = field(default_factory=CreateMetrics)

    def excess(self, informers: APIInformers, caller: str) -> TooManyWaiting | None:
        """Return the fault of a further operation without stock, or None if the caller may have one more."""
        cached = informers.unfinished_operations.store.by_index(CALLER_INDEX, caller)
        waiting = sum(progress_of(each) is OperationProgress.WAITING for each in cached)
        if waiting < self.max_per_caller:
            return None
        self.metrics.refused.labels(CreateRefusal.TOO_MANY_WAITING.value).inc()
        text = f"no stock is available, and {waiting} operations of {caller} already wait for stock"
        return TooManyWaiting(
            f"{text}; repeat the earlier requests, or send this request again later", WAITING_RETRY_SECONDS
        )
