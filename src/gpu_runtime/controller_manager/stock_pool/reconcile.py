"""Reconciler of StockPools: creates and corrects the children of one pool and writes its status."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import ReadyReason
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.validation import pool_errors
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.children import desired_children
from gpu_runtime.controller_manager.stock_pool.observe import observe
from gpu_runtime.controller_manager.stock_pool.status import readiness, status_of
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import requeue_outcome, sync_children
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult


@dataclass(frozen=True)
class StockPoolReconciler:
    client: KubeClient
    informers: ControllerInformers
    status_writer: StatusWriter
    settings: ControllerManagerSettings

    async def reconcile(self, pool: StockPool) -> ReconcileResult:
        if pool.metadata.deletion_timestamp:
            return Done()  # the garbage collector deletes the children through their owner references
        now = self.status_writer.clock()
        observed = observe(pool, self.informers, self.settings, now)
        problems = pool_errors(pool.spec, "spec", self.settings.pods.policy)
        blocked = Blocked(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None
        if blocked is None:
            blocked = await sync_children(self.client, self.informers, pool, desired_children(observed))
            # Observe again, to see the written Deployment. Its status does not describe the new generation yet. The
            # time is the same: otherwise a unit could become due between the two, and the pool would not give way.
            observed = observe(pool, self.informers, self.settings, now)
        result = blocked.readiness if blocked else readiness(observed)
        status = status_of(observed, result, self.status_writer.now())
        await self.status_writer.write_status(self.informers.pools, pool, pool.status, status)
        return requeue_outcome(result, observed.until_give_way)
