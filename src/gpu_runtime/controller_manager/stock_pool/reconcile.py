"""Keeps one StockPool true."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.validation import pool_problems
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.controller_manager.stock_pool.children import desired_children
from gpu_runtime.controller_manager.stock_pool.observe import Observed, observe
from gpu_runtime.controller_manager.stock_pool.status import status_of, verdict
from gpu_runtime.controller_manager.workload.status_writer import Reporter
from gpu_runtime.controller_manager.workload.sync_children import keep, next_look
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked, Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, Settled


def invalid_spec(seen: Observed) -> Blocked | None:
    problems = pool_problems(seen.pool.spec, at="spec")
    return Blocked(Reason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


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
        blocked = invalid_spec(seen)
        if blocked is None:
            blocked = await keep(self.client, self.caches, pool, desired_children(seen))
            seen = observe(pool, self.caches, self.settings)  # what was just asked for is not what runs yet
        thought = blocked.verdict if blocked else verdict(seen)
        await self._report(seen, thought)
        return next_look(thought)

    async def _report(self, seen: Observed, thought: Verdict) -> None:
        after = status_of(seen, thought, self.reporter.now())
        await self.reporter.report(self.caches.pools, seen.pool, seen.pool.status, after)
