"""Reconciler of GPUUnits: creates and corrects the children of one unit and writes its status."""

from dataclasses import dataclass, replace
from datetime import datetime

from msgspec import structs

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.crd.well_known import (
    ACTIVE_PRIORITY_CLASS,
    Label,
    UnitRole,
    role_of,
)
from gpu_runtime.contract.operation_rules import is_claimed
from gpu_runtime.contract.unit_lifetime import STOP_FIELDS, RunTimes, run_times
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.function_queues import FunctionQueues
from gpu_runtime.controller_manager.gpu_unit.adoption import PodAdopter
from gpu_runtime.controller_manager.gpu_unit.children import desired_children
from gpu_runtime.controller_manager.gpu_unit.lifetime import CLOCK_RECHECK_SECONDS, UnitLifetimes
from gpu_runtime.controller_manager.gpu_unit.mount_events import MOUNT_POLL_SECONDS, mount_warning, mounting_pod
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit, observe
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from gpu_runtime.controller_manager.gpu_unit.status import readiness, status_of
from gpu_runtime.controller_manager.gpu_unit.stock_release import priority_class, until_preemption, until_release_report
from gpu_runtime.controller_manager.gpu_unit.stock_releaser import StockReleaser
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.source_stock_ref import describe_source
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.unstructured import RAW_DEPLOYMENTS
from gpu_runtime.controller_manager.volume_refs import unit_storage_keys
from gpu_runtime.controller_manager.workload.namespace_isolation import sync_isolation
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import is_deployment_synced, requeue_outcome, sync_children
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from gpu_runtime.kube.builtin_kinds import PODS
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.codec import ListOptions
from gpu_runtime.kube.controller import Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.live_objects import find_live
from gpu_runtime.process.await_both import await_both

RECORD_SECONDS = 2.0
"""Seconds within which the activator normally records a worker that it has created."""


@dataclass(frozen=True)
class GPUUnitReconciler:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings
    storage_locks: StorageLocks
    lifetimes: UnitLifetimes
    adopter: PodAdopter
    releaser: StockReleaser
    queues: FunctionQueues

    async def reconcile(self, unit: GPUUnit) -> ReconcileResult:
        if unit.metadata.deletion_timestamp:
            return Done()  # the garbage collector deletes the children through their owner references
        if role_of(unit.metadata.namespace, self.settings.namespaces.stock) is UnitRole.STOCK and is_claimed(unit):
            return Done()  # the handoff deletes the children, which must not be created again
        async with self.storage_locks.acquire(unit_storage_keys(unit)):
            return await self._sync(unit)

    async def _sync(self, unit: GPUUnit) -> ReconcileResult:
        now = self.status_writer.clock()
        await self.queues.ensure(unit)
        observed = observe(unit, self.informers, self.settings, now)
        if unit.status.phase is None and (stock := observed.source_stock) is not None:
            self.status_writer.recorder.normal(GPU_UNITS, unit, "CreatedFromStock", describe_source(stock))
        until_release = None
        egress = self.settings.serverless.egress
        blocked = await sync_isolation(self.client, self.informers, unit.metadata.namespace, egress)
        blocked = blocked or first_violation(UNIT_RULES, observed)
        if blocked is not None and blocked.reason is ReadyReason.WORKER_NOT_RECORDED and _is_new(unit, now):
            return RequeueAfter(RECORD_SECONDS)  # write no status, because this would cost a write for each worker
        if blocked is None:
            blocked = await self.adopter.adopt(observed)
        if blocked is None:
            confirmed = await self._read_uncached(observed)
            sync = sync_children(self.client, self.informers, unit, desired_children(confirmed))
            blocked, until_release = await await_both(sync, self.releaser.release(observed))
            # Observe again, to see the written Deployment. Its status does not describe the new generation yet. The
            # time is the same: otherwise the delay until preemption could end between the two, without an effect.
            observed = observe(unit, self.informers, self.settings, now)
            observed = replace(observed, mount_warning=await mount_warning(self.client, observed))
        result = blocked.readiness if blocked else readiness(observed)
        run, until_clocks_agree = await self._run_times(observed, result)
        is_built = is_deployment_synced(blocked)
        status = status_of(observed, result, self.status_writer.now(), run, is_built=is_built)
        until_write = await self.status_writer.write_limited(self.informers.units, unit, unit.status, status)
        until_end = await self.lifetimes.end_if_due(structs.replace(unit, status=status))
        until_poll = MOUNT_POLL_SECONDS if mounting_pod(observed) else None
        until_waited = (until_release_report(observed) or None, until_preemption(observed) or None)
        delays = (until_end, until_poll, until_clocks_agree, until_release, *until_waited)
        return requeue_outcome(result, until_write, *delays)

    async def _read_uncached(self, observed: ObservedUnit) -> ObservedUnit:
        """Read what the cache may not show, if it decides the priority class. Another class replaces a running pod."""
        unit = observed.unit.metadata
        if observed.source_stock is None:
            return observed
        if observed.deployment is None and observed.unit.status.phase is not None:
            observed = replace(observed, deployment=await find_live(self.client, RAW_DEPLOYMENTS, unit.key))
        if priority_class(observed) == ACTIVE_PRIORITY_CLASS and until_preemption(observed) == 0:
            own = ListOptions(unit.namespace, label_selector=f"{Label.UNIT_UID}={unit.uid}")
            observed = replace(observed, pods=tuple((await self.client.list(PODS, own)).items))
        return observed

    async def _run_times(self, observed: ObservedUnit, result: WorkloadReadiness) -> tuple[RunTimes, float | None]:
        """Return the times of the run, and the delay until the next attempt to record them.

        A time that decides when a unit stops is recorded only if the clock of this process is right.
        """
        unit = observed.unit
        if observed.role is UnitRole.STOCK:
            return RunTimes(), None
        recorded = RunTimes(unit.status.start_time, unit.status.first_ready_time)
        run = run_times(unit, ready=result.ready, now=self.status_writer.now())
        stops = any(getattr(unit.spec, field) is not None for field in STOP_FIELDS)
        if not stops or run == recorded or await self.lifetimes.agreed_time(unit) is not None:
            return run, None
        return recorded, CLOCK_RECHECK_SECONDS


def _is_new(unit: GPUUnit, now: datetime) -> bool:
    created = unit.metadata.creation_timestamp
    return created is not None and (now - datetime.fromisoformat(created)).total_seconds() < RECORD_SECONDS
