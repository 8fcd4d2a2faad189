"""The status of a pool, from what was seen. Nothing here awaits."""

from gpu_runtime.contract.crd.conditions import Reason, UnitPhase
from gpu_runtime.contract.crd.stock_pool import StockPoolStatus
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.stock_pool.observe import Observed
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.status_writer import condition
from gpu_runtime.controller_manager.workload.unstructured import Deployment, has_pods, is_current
from gpu_runtime.controller_manager.workload.workload_readiness import Verdict
from gpu_runtime.kube.builtin_kinds import Pod


def verdict(seen: Observed) -> Verdict:
    wanted = seen.pool.spec.replicas
    available = _available(seen.deployment)
    if wanted == 0 and not seen.pods and not has_pods(seen.deployment):
        return Verdict(UnitPhase.EMPTY, Reason.SCALED_TO_ZERO, "the pool is wanted without replicas")
    if _is_up(seen.deployment, wanted):
        return Verdict(UnitPhase.READY, Reason.DEPLOYMENT_READY, f"all {wanted} replicas are available")
    if failure := startup_failure(seen.deployment, _unready(seen)):
        return Verdict(UnitPhase.FAILED, Reason.POD_STARTUP_FAILED, failure)
    if seen.pods_trouble:
        return Verdict(UnitPhase.PROGRESSING, Reason.POD_STATUS_SYNC_FAILED, seen.pods_trouble)
    return Verdict(
        UnitPhase.PROGRESSING, Reason.DEPLOYMENT_PROGRESSING, f"{available} of {wanted} replicas are available"
    )


def status_of(seen: Observed, thought: Verdict, now: str) -> StockPoolStatus:
    metadata, before = seen.pool.metadata, seen.pool.status
    available = _available(seen.deployment)
    return StockPoolStatus(
        available=available,
        allocated=max(seen.pool.spec.replicas - available, 0),
        phase=thought.phase.value,
        service_name=pool_child_name(metadata.name) if seen.pool.spec.template.ports else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        conditions=condition(before.conditions, thought, metadata.generation, now),
    )


def _available(deployment: Deployment | None) -> int:
    return deployment.status.available_replicas if deployment else 0


def _is_up(deployment: Deployment | None, wanted: int) -> bool:
    """Whether what runs is what was last asked for, all of it and nothing more."""
    if deployment is None or wanted == 0:
        return False
    status = deployment.status
    return is_current(deployment) and status.updated_replicas == status.available_replicas == status.replicas == wanted


def _unready(seen: Observed) -> list[Pod]:
    """The pods that the pool still waits for."""
    return [
        pod for pod in seen.pods if not any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
    ]
