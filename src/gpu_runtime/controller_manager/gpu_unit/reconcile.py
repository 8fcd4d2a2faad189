"""Keeps one GPUUnit true."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.gpu_unit.children import desired_children
from gpu_runtime.controller_manager.gpu_unit.observe import Observed, observe
from gpu_runtime.controller_manager.gpu_unit.rules import UNIT_RULES, first_violation
from gpu_runtime.controller_manager.gpu_unit.status import status_of, verdict
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.storage_locks import Turns
from gpu_runtime.controller_manager.volume_refs import storages_of
from gpu_runtime.controller_manager.workload.status_writer import Reporter
from gpu_runtime.controller_manager.workload.sync_children import keep, next_look
from gpu_runtime.controller_manager.workload.workload_readiness import Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, Settled


@dataclass(frozen=True)
class GPUUnitReconciler:
    client: Client
    caches: Caches
    reporter: Reporter
    settings: ControllerManagerSettings
    turns: Turns

    async def reconcile(self, unit: GPUUnit) -> Outcome:
        if unit.metadata.deletion_timestamp:
            return Settled()  # its children go with it
        async with self.turns.at(storages_of(unit)):
            return await self._keep(unit)

    async def _keep(self, unit: GPUUnit) -> Outcome:
        seen = observe(unit, self.caches, self.settings)
        blocked = first_violation(UNIT_RULES, seen)
        if blocked is None:
            blocked = await keep(self.client, self.caches, unit, desired_children(seen))
            seen = observe(unit, self.caches, self.settings)  # what was just asked for is not what runs yet
        thought = blocked.verdict if blocked else verdict(seen)
        await self._report(seen, thought)
        return next_look(thought)

    async def _report(self, seen: Observed, thought: Verdict) -> None:
        after = status_of(seen, thought, self.reporter.now())
        await self.reporter.report(self.caches.units, seen.unit, seen.unit.status, after)
