"""Reconciler of StockPools: creates and corrects the children of one pool and writes its status."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.children import desired_children
from gpu_runtime.controller_manager.stock_pool.observe import observe
from gpu_runtime.controller_manager.stock_pool.pool_rules import invalid_pool
from gpu_runtime.controller_manager.stock_pool.status import readiness, status_of
from gpu_runtime.controller_manager.workload.namespace_isolation import sync_isolation
from gpu_runtime.controller_manager.workload.status_writer import StatusWriter
from gpu_runtime.controller_manager.workload.sync_children import is_deployment_synced, requeue_outcome, sync_children
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
        egress = self.settings.serverless.egress
        blocked = await sync_isolation(self.client, self.informers, pool.metadata.namespace, egress)
        blocked = blocked or invalid_pool(pool.spec, self.settings.pods.policy)
        if blocked is None:
            blocked = await sync_children(self.client, self.informers, pool, desired_children(observed))
            # Observe again, to see the written Deployment. Its status does not describe the new generation yet. The
            # time is the same: otherwise a unit could become due between the two, and the pool would not give way.
            observed = observe(pool, self.informers, self.settings, now)
        result = blocked.readiness if blocked else readiness(observed)
        is_built = is_deployment_synced(blocked)
        status = status_of(observed, result, self.status_writer.now(), is_built=is_built)
        until_write = await self.status_writer.write_limited(self.informers.pools, pool, pool.status, status)
        return requeue_outcome(result, until_write, observed.until_give_way)
