"""From children to a verdict: the part of reconciling that units and pools share."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import Reason, UnitPhase
from gpu_runtime.controller_manager.controller_informers import Caches
from gpu_runtime.controller_manager.workload.apply import Child, Refused, make
from gpu_runtime.controller_manager.workload.workload_readiness import Blocked, Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, RecheckIn, Settled
from gpu_runtime.kube.meta import Object

PASSING_SECONDS = 1.0
"""For what passes by itself, such as the remains of a namesake."""

RECHECK_SECONDS = 15.0
"""For what an operator must change elsewhere, which nobody tells."""

UNTOLD = (
    Reason.NAME_TAKEN,
    Reason.DEPLOYMENT_SYNC_FAILED,
    Reason.SERVICE_SYNC_FAILED,
    Reason.NETWORK_POLICY_SYNC_FAILED,
    Reason.POD_STATUS_SYNC_FAILED,
    Reason.STOCK_RELEASING,
)
"""Reasons that may end without an event that this process hears of."""


async def keep(client: Client, caches: Caches, owner: Object, children: Iterable[Child]) -> Blocked | None:
    """Make the children what they should be. The caches know at once what was written."""
    try:
        for child in children:
            if written := await make(client, owner, child):
                caches.learn(child.resource, written)
    except Refused as refused:
        return refused.blocked
    return None


def next_look(thought: Verdict) -> Outcome:
    """When to look again even if nothing is heard."""
    if thought.reason not in UNTOLD:
        return Settled()
    passing = thought.reason is Reason.NAME_TAKEN and thought.phase is UnitPhase.PROGRESSING
    return RecheckIn(PASSING_SECONDS if passing else RECHECK_SECONDS)
