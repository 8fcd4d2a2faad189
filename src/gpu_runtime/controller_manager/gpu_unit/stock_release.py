"""Decides how a unit waits for the GPUs of its stock unit, and when its pod may preempt other stock. Pure.

The pod of the unit is created immediately. If no other GPUs are free, `stock_releaser` ends the pod of the stock unit,
and the scheduler starts the unit's pod as soon as its GPUs are free. Its priority class must not preempt: otherwise the
scheduler would end the youngest stock pod on the node, which is usually not the pod of the consumed stock unit.

Another pod can get the released GPUs first, for example a stock pod that waits for GPUs. Then the unit has lost the
GPUs that its stock unit reserved. After `PREEMPTION_DELAY_SECONDS`, the unit gets a pod that may preempt. A worker that
was created without stock never preempts.
"""

from datetime import datetime, timedelta

from gpu_runtime.contract.crd.well_known import ACTIVE_PRIORITY_CLASS, HANDOFF_PRIORITY_CLASS
from gpu_runtime.controller_manager.gpu_unit.observe import ObservedUnit
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import parse_timestamp

PREEMPTION_DELAY_SECONDS = 10
"""How long the pod of a unit from stock waits for the scheduler before it may preempt."""

RELEASE_REPORT_DELAY_SECONDS = 2
"""How long the pod waits for the stock before the status of the unit reports it. The stock pod usually ends in a
fraction of a second. Two more writes of the status in this time would slow down the end of the stock pod and the start
of the unit's pod, if the control plane runs on the same machine."""

MAX_POOL_WAIT_SECONDS = 5
"""How long after the creation of the unit the stock pod is kept if pods of adoptable pools wait for GPUs."""

MAX_RELEASE_SECONDS = 60
"""How long the pod waits before it may preempt if objects of the stock unit still exist, for example because no replica
of the runtime API runs. These objects may still use the GPUs."""


def priority_class(observed: ObservedUnit) -> str:
    """Return the priority class of an active unit's pod. Once it is the preempting class, it does not change back."""
    live = observed.deployment.spec["template"]["spec"] if observed.deployment is not None else {}
    may_change = observed.unit.spec.running and live.get("priorityClassName") != ACTIVE_PRIORITY_CLASS
    waits = observed.source_stock is not None and until_preemption(observed) != 0
    return HANDOFF_PRIORITY_CLASS if may_change and (waits or is_cold_worker(observed)) else ACTIVE_PRIORITY_CLASS


def is_cold_worker(observed: ObservedUnit) -> bool:
    """Whether the unit is a worker that was created without stock. It never preempts.

    The activator creates such a worker if no stock of its flavor is free. If it could preempt, the workers of one
    function could end the stock of all other flavors.
    """
    serverless = observed.unit.spec.serverless
    return observed.source_stock is None and serverless is not None and bool(serverless.worker_of)


def may_preempt(observed: ObservedUnit) -> bool:
    """Whether the pod of a unit from stock has waited long enough to get a pod that preempts."""
    return observed.source_stock is not None and priority_class(observed) == ACTIVE_PRIORITY_CLASS


def is_replaced(observed: ObservedUnit) -> bool:
    """Whether a pod of the unit that does not preempt still ends, for example on a lost node."""
    return any(
        pod.metadata.deletion_timestamp is not None
        and pod.spec.node_name
        and not pod.has_ended
        and pod.spec.priority_class_name == HANDOFF_PRIORITY_CLASS
        for pod in observed.pods
    )


def until_preemption(observed: ObservedUnit) -> float | None:
    """Return the seconds until the pod may preempt, or None if the pod does not wait for the scheduler."""
    waiting = _waiting_since(observed)
    if observed.source_stock is None or waiting is None:
        return None
    delay = MAX_RELEASE_SECONDS if observed.stock_objects else PREEMPTION_DELAY_SECONDS
    may_preempt_at = waiting + timedelta(seconds=delay)
    return max((may_preempt_at - observed.now).total_seconds(), 0)


def until_release_report(observed: ObservedUnit) -> float | None:
    """Return the seconds until the status reports that the pod waits for the stock, or None if it does not wait."""
    waiting = _waiting_since(observed)
    if waiting is None or not waits_for_stock(observed):
        return None
    report_at = waiting + timedelta(seconds=RELEASE_REPORT_DELAY_SECONDS)
    return max((report_at - observed.now).total_seconds(), 0)


def waits_for_pools(observed: ObservedUnit) -> bool:
    """Whether the stock pod must not end yet, because a pod of an adoptable pool could get its GPUs first.

    While the pod of a unit waits for GPUs, the pools delete their pods without a node. This takes less than a second.
    """
    created = parse_timestamp(observed.unit.metadata.creation_timestamp)
    is_new = created is not None and observed.now < created + timedelta(seconds=MAX_POOL_WAIT_SECONDS)
    return observed.pools_wait and is_new


def waits_for_stock(observed: ObservedUnit) -> bool:
    """Whether the unit's pod waits, and objects of the stock unit still exist, which may use its GPUs."""
    return bool(observed.stock_objects) and bool(_waiting_pods(observed))


def _waiting_since(observed: ObservedUnit) -> datetime | None:
    times = [parse_timestamp(pod.metadata.creation_timestamp) for pod in _waiting_pods(observed)]
    return min((time for time in times if time is not None), default=None)


def _waiting_pods(observed: ObservedUnit) -> list[Pod]:
    return [pod for pod in observed.pods if pod.metadata.deletion_timestamp is None and pod.is_unschedulable]
