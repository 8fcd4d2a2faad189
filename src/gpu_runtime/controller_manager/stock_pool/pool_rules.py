"""The rule that a pool must fulfil before its children are created or changed, and before it gives way to units."""

from functools import lru_cache

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.stock_pool import StockPoolSpec
from gpu_runtime.contract.validation import pool_errors
from gpu_runtime.contract.validation.pod_policy import PodPolicy
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked


@lru_cache(maxsize=4096)
def invalid_pool(spec: StockPoolSpec, policy: PodPolicy) -> Blocked | None:
    """Validate a spec.

    The result is cached, because while a unit waits for GPUs, every adoptable pool checks all adoptable pools.
    """
    problems = pool_errors(spec, "spec", policy)
    return Blocked(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None
