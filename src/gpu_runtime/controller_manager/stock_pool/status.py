"""Computes the phase, Ready condition and status of a pool from an `ObservedPool`. No I/O."""

from gpu_runtime.contract.crd.conditions import (
    ADOPTABLE_CONDITION,
    AdoptableReason,
    ReadyReason,
    UnitPhase,
    set_condition,
)
from gpu_runtime.contract.crd.stock_pool import StockPoolStatus
from gpu_runtime.contract.crd.well_known import pool_child_name
from gpu_runtime.controller_manager.stock_pool.children.deployment import pool_build
from gpu_runtime.controller_manager.stock_pool.children.service import service
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool
from gpu_runtime.controller_manager.unstructured import RawDeployment, has_pods, is_generation_observed
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.pod_profile import new_record
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from gpu_runtime.kube.meta import Condition


def readiness(observed: ObservedPool) -> WorkloadReadiness:
    desired = observed.pool.spec.replicas
    available = _available_replicas(observed.deployment)
    if desired == 0 and not observed.pods and not has_pods(observed.deployment):
        return WorkloadReadiness(
            UnitPhase.EMPTY, ReadyReason.SCALED_TO_ZERO, "spec.replicas is 0: increase it to start pods"
        )
    if _is_fully_available(observed.deployment, desired):
        return WorkloadReadiness(UnitPhase.READY, ReadyReason.DEPLOYMENT_READY, f"all {desired} replicas are available")
    unready = [pod for pod in observed.pods if not pod.is_ready]
    if failure := startup_failure(observed.deployment, unready):
        return WorkloadReadiness(UnitPhase.FAILED, ReadyReason.POD_STARTUP_FAILED, failure)
    if observed.pod_cache_error:
        return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.POD_STATUS_SYNC_FAILED, observed.pod_cache_error)
    text = f"{available} of {desired} replicas are available"
    if observed.give_way:
        text += f"; the pool keeps {observed.desired_replicas}, because units wait for GPUs"
    return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.DEPLOYMENT_PROGRESSING, text)


def status_of(observed: ObservedPool, result: WorkloadReadiness, now: str, *, is_built: bool) -> StockPoolStatus:
    """Return the status. `is_built` says whether the Deployment was built from the current spec."""
    metadata, before = observed.pool.metadata, observed.pool.status
    available = _available_replicas(observed.deployment)
    conditions = with_ready_condition(before.conditions, result, metadata.generation, now)
    return StockPoolStatus(
        available=available,
        allocated=max(observed.pool.spec.replicas - available, 0),
        phase=result.phase.value,
        service_name=pool_child_name(metadata.name) if service(observed) else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        pod=new_record(pool_build(observed), metadata) if is_built else before.pod,
        conditions=set_condition(conditions, _adoptable_condition(observed), now),
    )


def _adoptable_condition(observed: ObservedPool) -> Condition:
    """Return whether a handoff may take the pods of the pool, and if not, why."""
    spec = observed.pool.spec
    if observed.is_adoptable:
        reason, message = (
            AdoptableReason.ADOPTABLE,
            "a create request in this namespace with the same template may take a pod",
        )
    elif spec.adoptable:
        text = "the pods run a placeholder, which is no program: set spec.image, and spec.template.command or args"
        reason, message = AdoptableReason.PLACEHOLDER, text
    else:
        reason, message = AdoptableReason.NOT_REQUESTED, "spec.adoptable is false"
    status = "True" if observed.is_adoptable else "False"
    generation = observed.pool.metadata.generation
    return Condition(
        type=ADOPTABLE_CONDITION, status=status, reason=reason.value, message=message, observed_generation=generation
    )


def _available_replicas(deployment: RawDeployment | None) -> int:
    return deployment.status.available_replicas if deployment else 0


def _is_fully_available(deployment: RawDeployment | None, desired: int) -> bool:
    """Return whether exactly the desired number of pods is available and all have the current pod template."""
    if deployment is None or desired == 0:
        return False
    status = deployment.status
    return (
        is_generation_observed(deployment)
        and status.updated_replicas == status.available_replicas == status.replicas == desired
    )
