"""The status of a pool, from what was seen. Nothing here awaits."""

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.contract.crd.stock_pool import StockPoolStatus
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, has_pods, is_generation_observed
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from gpu_runtime.kube.builtin_kinds import Pod


def readiness(seen: ObservedPool) -> WorkloadReadiness:
    wanted = seen.pool.spec.replicas
    available = _available_replicas(seen.deployment)
    if wanted == 0 and not seen.pods and not has_pods(seen.deployment):
        return WorkloadReadiness(UnitPhase.EMPTY, ReadyReason.SCALED_TO_ZERO, "the pool is wanted without replicas")
    if _is_fully_available(seen.deployment, wanted):
        return WorkloadReadiness(UnitPhase.READY, ReadyReason.DEPLOYMENT_READY, f"all {wanted} replicas are available")
    if failure := startup_failure(seen.deployment, _unready_pods(seen)):
        return WorkloadReadiness(UnitPhase.FAILED, ReadyReason.POD_STARTUP_FAILED, failure)
    if seen.pod_cache_error:
        return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.POD_STATUS_SYNC_FAILED, seen.pod_cache_error)
    return WorkloadReadiness(
        UnitPhase.PROGRESSING, ReadyReason.DEPLOYMENT_PROGRESSING, f"{available} of {wanted} replicas are available"
    )


def status_of(seen: ObservedPool, thought: WorkloadReadiness, now: str) -> StockPoolStatus:
    metadata, before = seen.pool.metadata, seen.pool.status
    available = _available_replicas(seen.deployment)
    return StockPoolStatus(
        available=available,
        allocated=max(seen.pool.spec.replicas - available, 0),
        phase=thought.phase.value,
        service_name=pool_child_name(metadata.name) if seen.pool.spec.template.ports else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        conditions=with_ready_condition(before.conditions, thought, metadata.generation, now),
    )


def _available_replicas(deployment: RawDeployment | None) -> int:
    return deployment.status.available_replicas if deployment else 0


def _is_fully_available(deployment: RawDeployment | None, wanted: int) -> bool:
    """Whether what runs is what was last asked for, all of it and nothing more."""
    if deployment is None or wanted == 0:
        return False
    status = deployment.status
    return (
        is_generation_observed(deployment)
        and status.updated_replicas == status.available_replicas == status.replicas == wanted
    )


def _unready_pods(seen: ObservedPool) -> list[Pod]:
    """The pods that the pool still waits for."""
    return [
        pod for pod in seen.pods if not any(c.type == "Ready" and c.status == "True" for c in pod.status.conditions)
    ]
