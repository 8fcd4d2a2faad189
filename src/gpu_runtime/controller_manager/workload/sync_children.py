"""From children to a verdict: the part of reconciling that units and pools share."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.workload.apply import ChildRejected, DesiredChild, apply_child
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked, WorkloadReadiness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.meta import KubeObject

SHORT_REQUEUE_SECONDS = 1.0
"""For what passes by itself, such as the remains of a namesake."""

POLL_REQUEUE_SECONDS = 15.0
"""For what an operator must change elsewhere, which nobody tells."""

WORKLOAD_POLLED_REASONS = (
    ReadyReason.NAME_TAKEN,
    ReadyReason.DEPLOYMENT_SYNC_FAILED,
    ReadyReason.SERVICE_SYNC_FAILED,
    ReadyReason.NETWORK_POLICY_SYNC_FAILED,
    ReadyReason.POD_STATUS_SYNC_FAILED,
    ReadyReason.STOCK_RELEASING,
)
"""Reasons that may end without an event that this process hears of."""


async def sync_children(
    client: KubeClient, caches: ControllerInformers, owner: KubeObject, children: Iterable[DesiredChild]
) -> Blocked | None:
    """Make the children what they should be. The caches know at once what was written."""
    try:
        for child in children:
            if written := await apply_child(client, owner, child):
                caches.record_write(child.resource, written)
    except ChildRejected as refused:
        return refused.blocked
    return None


def requeue_outcome(thought: WorkloadReadiness) -> ReconcileResult:
    """When to look again even if nothing is heard."""
    if thought.reason not in WORKLOAD_POLLED_REASONS:
        return Done()
    passing = thought.reason is ReadyReason.NAME_TAKEN and thought.phase is UnitPhase.PROGRESSING
    return RequeueAfter(SHORT_REQUEUE_SECONDS if passing else POLL_REQUEUE_SECONDS)
