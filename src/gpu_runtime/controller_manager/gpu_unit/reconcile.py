"""Keeps one GPUUnit true."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.gpu_unit.children import desired_children
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit, observe
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from gpu_runtime.controller_manager.gpu_unit.status import readiness, status_of
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.controller_manager.volume_refs import unit_storage_keys
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import requeue_outcome, sync_children
from gpu_runtime.controller_manager.workload.workload_readiness import WorkloadReadiness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult


@dataclass(frozen=True)
class GPUUnitReconciler:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings
    storage_locks: StorageLocks

    async def reconcile(self, unit: GPUUnit) -> ReconcileResult:
        if unit.metadata.deletion_timestamp:
            return Done()  # its children go with it
        async with self.storage_locks.acquire(unit_storage_keys(unit)):
            return await self._sync(unit)

    async def _sync(self, unit: GPUUnit) -> ReconcileResult:
        seen = observe(unit, self.informers, self.settings)
        blocked = first_violation(UNIT_RULES, seen)
        if blocked is None:
            blocked = await sync_children(self.client, self.informers, unit, desired_children(seen))
            seen = observe(unit, self.informers, self.settings)  # what was just asked for is not what runs yet
        thought = blocked.readiness if blocked else readiness(seen)
        await self._write_status(seen, thought)
        return requeue_outcome(thought)

    async def _write_status(self, seen: ObservedUnit, thought: WorkloadReadiness) -> None:
        after = status_of(seen, thought, self.status_writer.now())
        await self.status_writer.write_status(self.informers.units, seen.unit, seen.unit.status, after)
