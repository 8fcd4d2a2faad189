"""Keeps one StockPool true."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.validation import pool_problems
from gpu_runtime.controller_manager.caches import Caches
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.children import desired_children
from gpu_runtime.controller_manager.stock_pool.observe import Observed, observe
from gpu_runtime.controller_manager.stock_pool.status import status_of, verdict
from gpu_runtime.controller_manager.workload.flow import keep
from gpu_runtime.controller_manager.workload.report import Reporter
from gpu_runtime.controller_manager.workload.verdict import Blocked, Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, Settled


@dataclass(frozen=True)
class StockPoolReconciler:
    client: Client
    caches: Caches
    reporter: Reporter
    settings: ControllerManagerSettings

    async def reconcile(self, pool: StockPool) -> Outcome:
        if pool.metadata.deletion_timestamp:
            return Settled()  # its children go with it
        seen = observe(pool, self.caches, self.settings)
        if problems := pool_problems(pool.spec, at="spec"):
            await self._report(seen, Blocked(Reason.INVALID_SPEC, "; ".join(map(str, problems))).verdict)
            return Settled()
        thought, outcome = await keep(self.client, pool, desired_children(seen), verdict(seen))
        await self._report(seen, thought)
        return outcome

    async def _report(self, seen: Observed, thought: Verdict) -> None:
        after = status_of(seen, thought, self.reporter.now())
        await self.reporter.report(self.caches.pools, seen.pool, seen.pool.status, after)
