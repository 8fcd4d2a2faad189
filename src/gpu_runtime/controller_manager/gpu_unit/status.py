"""The status of a unit, from what was seen. Nothing here awaits."""

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnitStatus
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.controller_manager.gpu_unit.children.service import access_url, service
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, has_pods, is_generation_observed
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness


def readiness(seen: ObservedUnit) -> WorkloadReadiness:
    if not seen.unit.spec.running:
        return _stopped_readiness(seen)
    if is_available(seen.deployment):
        return WorkloadReadiness(UnitPhase.READY, ReadyReason.UNIT_READY, "the unit's pod is ready")
    if failure := startup_failure(seen.deployment, seen.pods):
        return WorkloadReadiness(UnitPhase.FAILED, ReadyReason.POD_STARTUP_FAILED, failure)
    if seen.pod_cache_error:
        return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.POD_STATUS_SYNC_FAILED, seen.pod_cache_error)
    return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.UNIT_PROGRESSING, "the unit's pod is starting")


def status_of(seen: ObservedUnit, thought: WorkloadReadiness, now: str) -> GPUUnitStatus:
    metadata, before = seen.unit.metadata, seen.unit.status
    active = seen.role is UnitRole.ACTIVE
    deployment = seen.deployment
    return GPUUnitStatus(
        phase=thought.phase.value,
        ready_replicas=deployment.status.ready_replicas if deployment else 0,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        service_name=metadata.name if active and service(seen) else None,
        access_url=access_url(seen) if active else None,
        conditions=with_ready_condition(before.conditions, thought, metadata.generation, now),
    )


def is_available(deployment: RawDeployment | None) -> bool:
    """Whether what runs is what was last asked for, and it is ready."""
    if deployment is None:
        return False
    status = deployment.status
    pods = (status.updated_replicas, status.available_replicas, status.replicas)
    return is_generation_observed(deployment) and pods == (1, 1, 1)


def _stopped_readiness(seen: ObservedUnit) -> WorkloadReadiness:
    if seen.pods or has_pods(seen.deployment):
        return WorkloadReadiness(
            UnitPhase.PROGRESSING, ReadyReason.UNIT_PROGRESSING, "the unit is stopping: its pod is still there"
        )
    return WorkloadReadiness(UnitPhase.EMPTY, ReadyReason.SCALED_TO_ZERO, "the unit is stopped")
