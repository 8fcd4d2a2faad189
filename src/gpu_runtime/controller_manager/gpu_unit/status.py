"""Computes the phase, Ready condition and status of a unit from an `ObservedUnit`. No I/O."""

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnitStatus
from gpu_runtime.contract.crd.well_known import UnitRole
from gpu_runtime.contract.unit_lifetime import RunTimes, deletes_at, format_time, stops_at
from gpu_runtime.controller_manager.gpu_unit.children.deployment import unit_build
from gpu_runtime.controller_manager.gpu_unit.children.service import access_url, service
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.controller_manager.gpu_unit.stock_release import may_preempt, until_release_report, waits_for_stock
from gpu_runtime.controller_manager.source_stock_ref import SourceStockRef
from gpu_runtime.controller_manager.unstructured import RawDeployment, has_pods, is_generation_observed
from gpu_runtime.controller_manager.workload.pod_failures import startup_failure
from gpu_runtime.controller_manager.workload.pod_profile import new_record
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness

STARTING = WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.UNIT_PROGRESSING, "the unit's pod is starting")


def readiness(observed: ObservedUnit) -> WorkloadReadiness:
    if not observed.unit.spec.running:
        return _stopped_readiness(observed)
    if is_available(observed.deployment):
        return WorkloadReadiness(UnitPhase.READY, ReadyReason.UNIT_READY, "the unit's pod is ready")
    if waits_for_stock(observed) and not may_preempt(observed) and (stock := observed.source_stock) is not None:
        return STARTING if until_release_report(observed) else _waiting_readiness(stock)
    failure = startup_failure(observed.deployment, observed.pods)
    if failure is None and observed.mount_warning:
        failure = f"a volume of the pod cannot be mounted: {observed.mount_warning}"
    if failure is not None:
        return WorkloadReadiness(UnitPhase.FAILED, ReadyReason.POD_STARTUP_FAILED, failure)
    if observed.pod_cache_error:
        return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.POD_STATUS_SYNC_FAILED, observed.pod_cache_error)
    return STARTING


def status_of(
    observed: ObservedUnit, result: WorkloadReadiness, now: str, run: RunTimes, *, is_built: bool
) -> GPUUnitStatus:
    """Return the status. `is_built` says whether the Deployment was built from the current spec."""
    metadata, before = observed.unit.metadata, observed.unit.status
    active = observed.role is UnitRole.ACTIVE
    deployment = observed.deployment
    ends = active and not observed.unit.spec.serves_function
    return GPUUnitStatus(
        phase=result.phase.value,
        ready_replicas=deployment.status.ready_replicas if deployment else 0,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        service_name=metadata.name if active and service(observed) else None,
        access_url=access_url(observed) if active else None,
        start_time=run.start,
        first_ready_time=run.first_ready,
        stops_at=format_time(stops_at(observed.unit.spec, run)) if ends else None,
        deletes_at=format_time(deletes_at(observed.unit)) if ends else None,
        pod=new_record(unit_build(observed), metadata) if is_built else before.pod,
        pod_uid=_worker_pod_uid(observed),
        conditions=with_ready_condition(before.conditions, result, metadata.generation, now),
    )


def _worker_pod_uid(observed: ObservedUnit) -> str | None:
    """Return the UID of the pod that runs invocations. If Kubernetes replaces the pod, the new pod counts."""
    if not observed.unit.spec.serves_function or observed.role is not UnitRole.ACTIVE:
        return None
    running = [pod.metadata for pod in observed.pods if not pod.has_ended]
    newest = max(
        running,
        key=lambda pod: (pod.deletion_timestamp is None, pod.creation_timestamp or "", pod.uid),
        default=None,
    )
    return newest.uid if newest else None


def is_available(deployment: RawDeployment | None) -> bool:
    """Return whether the only pod of the Deployment is available and has the current pod template."""
    if deployment is None:
        return False
    status = deployment.status
    pods = (status.updated_replicas, status.available_replicas, status.replicas)
    return is_generation_observed(deployment) and pods == (1, 1, 1)


def _waiting_readiness(stock: SourceStockRef) -> WorkloadReadiness:
    # The text does not change with every object that is deleted, because each change costs a write.
    text = f"waiting until no object of the stock unit {stock.namespace}/{stock.name} uses its GPUs"
    return WorkloadReadiness(UnitPhase.PROGRESSING, ReadyReason.STOCK_RELEASING, text)


def _stopped_readiness(observed: ObservedUnit) -> WorkloadReadiness:
    if observed.pods or has_pods(observed.deployment):
        return WorkloadReadiness(
            UnitPhase.PROGRESSING,
            ReadyReason.UNIT_PROGRESSING,
            "the unit is stopping: waiting for its pod to terminate",
        )
    return WorkloadReadiness(
        UnitPhase.EMPTY, ReadyReason.SCALED_TO_ZERO, "the unit is stopped: set spec.running to true to start it"
    )
