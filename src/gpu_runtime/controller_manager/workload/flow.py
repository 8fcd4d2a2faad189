"""From children to a verdict: the part of reconciling that units and pools share."""

from collections.abc import Iterable

from gpu_runtime.contract.crd.conditions import Reason
from gpu_runtime.controller_manager.workload.apply import Child, Refused, make
from gpu_runtime.controller_manager.workload.verdict import Verdict
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.controller import Outcome, RecheckIn, Settled
from gpu_runtime.kube.objects import Object

PASSING_SECONDS = 1.0
"""For what passes by itself, such as the remains of a namesake."""

RECHECK_SECONDS = 15.0
"""For what an operator must change elsewhere, which nobody tells."""


async def keep(client: Client, owner: Object, children: Iterable[Child], thought: Verdict) -> tuple[Verdict, Outcome]:
    """Make the children what they should be. The verdict stands, unless one of them is refused."""
    try:
        for child in children:
            await make(client, owner, child)
    except Refused as refused:
        blocked = refused.blocked
        return blocked.verdict, RecheckIn(RECHECK_SECONDS if blocked.failed else PASSING_SECONDS)
    if thought.reason is Reason.POD_STATUS_SYNC_FAILED:
        return thought, RecheckIn(RECHECK_SECONDS)
    return thought, Settled()
