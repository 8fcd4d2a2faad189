"""The status of a unit, from what was seen. Nothing here awaits."""

from gpu_runtime.contract.crd.conditions import Reason, UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnitStatus
from gpu_runtime.contract.crd.well_known import Role
from gpu_runtime.controller_manager.gpu_unit.children.service import access_url, service
from gpu_runtime.controller_manager.gpu_unit.observe import Observed
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.status_writer import condition
from gpu_runtime.controller_manager.workload.unstructured import Deployment, has_pods, is_current
from gpu_runtime.controller_manager.workload.workload_readiness import Verdict


def verdict(seen: Observed) -> Verdict:
    if not seen.unit.spec.running:
        return _stopped(seen)
    if is_up(seen.deployment):
        return Verdict(UnitPhase.READY, Reason.UNIT_READY, "the unit's pod is ready")
    if failure := startup_failure(seen.deployment, seen.pods):
        return Verdict(UnitPhase.FAILED, Reason.POD_STARTUP_FAILED, failure)
    if seen.pods_trouble:
        return Verdict(UnitPhase.PROGRESSING, Reason.POD_STATUS_SYNC_FAILED, seen.pods_trouble)
    return Verdict(UnitPhase.PROGRESSING, Reason.UNIT_PROGRESSING, "the unit's pod is starting")


def status_of(seen: Observed, thought: Verdict, now: str) -> GPUUnitStatus:
    metadata, before = seen.unit.metadata, seen.unit.status
    active = seen.role is Role.ACTIVE
    deployment = seen.deployment
    return GPUUnitStatus(
        phase=thought.phase.value,
        ready_replicas=deployment.status.ready_replicas if deployment else 0,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        service_name=metadata.name if active and service(seen) else None,
        access_url=access_url(seen) if active else None,
        conditions=condition(before.conditions, thought, metadata.generation, now),
    )


def is_up(deployment: Deployment | None) -> bool:
    """Whether what runs is what was last asked for, and it is ready."""
    if deployment is None:
        return False
    status = deployment.status
    pods = (status.updated_replicas, status.available_replicas, status.replicas)
    return is_current(deployment) and pods == (1, 1, 1)


def _stopped(seen: Observed) -> Verdict:
    if seen.pods or has_pods(seen.deployment):
        return Verdict(UnitPhase.PROGRESSING, Reason.UNIT_PROGRESSING, "the unit is stopping: its pod is still there")
    return Verdict(UnitPhase.EMPTY, Reason.SCALED_TO_ZERO, "the unit is stopped")
