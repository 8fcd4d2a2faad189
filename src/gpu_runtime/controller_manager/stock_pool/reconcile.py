"""Keeps one StockPool true."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.validation import pool_errors
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.children import desired_children
from gpu_runtime.controller_manager.stock_pool.observe import ObservedPool, observe
from gpu_runtime.controller_manager.stock_pool.status import readiness, status_of
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import requeue_outcome, sync_children
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked, WorkloadReadiness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult


def invalid_spec(seen: ObservedPool) -> Blocked | None:
    problems = pool_errors(seen.pool.spec, path="spec")
    return Blocked(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


@dataclass(frozen=True)
class StockPoolReconciler:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings

    async def reconcile(self, pool: StockPool) -> ReconcileResult:
        if pool.metadata.deletion_timestamp:
            return Done()  # its children go with it
        seen = observe(pool, self.informers, self.settings)
        blocked = invalid_spec(seen)
        if blocked is None:
            blocked = await sync_children(self.client, self.informers, pool, desired_children(seen))
            seen = observe(pool, self.informers, self.settings)  # what was just asked for is not what runs yet
        thought = blocked.readiness if blocked else readiness(seen)
        await self._write_status(seen, thought)
        return requeue_outcome(thought)

    async def _write_status(self, seen: ObservedPool, thought: WorkloadReadiness) -> None:
        after = status_of(seen, thought, self.status_writer.now())
        await self.status_writer.write_status(self.informers.pools, seen.pool, seen.pool.status, after)
