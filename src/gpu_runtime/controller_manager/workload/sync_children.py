"""Applies the children of a unit or pool, and decides when to requeue its owner."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import ReadyReason, UnitPhase
from gpu_runtime.controller_manager.controller_informers import ControllerInformers
from gpu_runtime.controller_manager.workload.apply import ChildRejected, DesiredChild, apply_child
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked, WorkloadReadiness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.meta import KubeObject

SHORT_REQUEUE_SECONDS = 1.0
"""Requeue delay if the cause disappears without user action, for example if a child of a deleted owner still exists."""

POLL_REQUEUE_SECONDS = 15.0
"""Requeue delay if this process receives no event when the cause disappears."""

WORKLOAD_POLLED_REASONS = (
    ReadyReason.NAME_TAKEN,
    ReadyReason.DEPLOYMENT_SYNC_FAILED,
    ReadyReason.SERVICE_SYNC_FAILED,
    ReadyReason.NETWORK_POLICY_SYNC_FAILED,
    ReadyReason.POD_STATUS_SYNC_FAILED,
)
"""Reasons for which the controller requeues the owner, because their cause can disappear without a watched event."""


async def sync_children(
    client: KubeClient, informers: ControllerInformers, owner: KubeObject, children: Iterable[DesiredChild]
) -> Blocked | None:
    """Apply the children in order. Stop at the first rejected child and return the cause of the rejection.

    Every write is recorded in the informer store, so that the next read does not use a stale cache.
    """
    try:
        for child in children:
            if written := await apply_child(client, owner, child):
                informers.record_write(child.resource, written)
    except ChildRejected as rejected:
        return rejected.blocked
    return None


def is_deployment_synced(blocked: Blocked | None) -> bool:
    """Return whether the Deployment was applied. It is applied after the NetworkPolicy and before the Service."""
    return blocked is None or blocked.reason is ReadyReason.SERVICE_SYNC_FAILED


def requeue_outcome(result: WorkloadReadiness, *delays: float | None) -> ReconcileResult:
    """Return the delay after which to reconcile again even if no event occurs, or `Done` if an event is sufficient.

    The shortest delay counts: the delay of the reason, and the given delays that are not None.
    """
    seconds = [each for each in delays if each is not None]
    if result.reason in WORKLOAD_POLLED_REASONS:
        disappears_soon = result.reason is ReadyReason.NAME_TAKEN and result.phase is UnitPhase.PROGRESSING
        seconds.append(SHORT_REQUEUE_SECONDS if disappears_soon else POLL_REQUEUE_SECONDS)
    return RequeueAfter(min(seconds)) if seconds else Done()
