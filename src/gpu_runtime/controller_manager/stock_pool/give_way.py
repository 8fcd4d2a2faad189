"""Decides how many pods an adoptable pool deletes for units that wait for GPUs. Pure.

Pods of adoptable pools have the priority of units, because a pod keeps its priority when it becomes the pod of a unit.
So the scheduler does not preempt them for a unit. Instead, the pool itself gives way:

- While the pod of a unit waits for GPUs, no adoptable pool starts further pods. They could get the GPUs first.
- If the pod has waited for `GIVE_WAY_DELAY_SECONDS` and gets no GPUs of stock, one pool deletes one pod that reserves
  enough GPUs.

Not every unit can start after a pool has deleted a pod, for example because no node has enough memory. So the pools
give way to each unit only once in `REPEAT_SECONDS`, and wait for it no longer than `MAX_HOLD_SECONDS`. An annotation of
the pool's Deployment records the units and the times. The number of replicas is written together with the annotation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runtime.kube.meta import ObjectKey

GIVE_WAY_DELAY_SECONDS = 10
MAX_HOLD_SECONDS = 60
REPEAT_SECONDS = 600


@dataclass(frozen=True)
class WaitingPod:
    """The pod of a unit that the scheduler cannot place, because no node has enough free GPUs."""

    unit_uid: str
    gpu: int
    since: datetime
    may_get_stock: bool = False
    """Whether the pod waits for GPUs of stock."""

    @property
    def due_at(self) -> datetime:
        """When a pool must give way to the pod."""
        return self.since + timedelta(seconds=GIVE_WAY_DELAY_SECONDS)


@dataclass(frozen=True)
class YieldingPool:
    """An adoptable pool that may have to give way."""

    gpu: int
    """The GPUs of each pod."""
    replicas: int
    """The replicas of its Deployment."""
    running: int
    """The number of pods that have a node, and neither end nor have ended."""
    claimed: int = 0
    """How many of the running pods a handoff has claimed. The pool must not delete them."""
    given_way_to: Mapping[str, datetime] = field(default_factory=dict)
    """When the pool has given way, by the UID of the unit."""


@dataclass(frozen=True)
class GiveWay:
    max_replicas: int
    """The number of pods that the pool keeps."""
    given_way_to: Mapping[str, datetime]


def give_way(
    key: ObjectKey, pools: Mapping[ObjectKey, YieldingPool], waiting: Iterable[WaitingPod], now: datetime
) -> GiveWay | None:
    """Return how the pool with this key gives way, or None if it may start all its pods.

    Every pool decides for all pools in the same way, so two pools do not give way to the same unit.
    """
    pods = sorted(waiting, key=lambda each: (each.since, each.unit_uid))
    recorded = _records(pools, now)
    left = {name: min(pool.replicas, pool.running) - pool.claimed for name, pool in pools.items()}
    added: dict[ObjectKey, dict[str, datetime]] = {name: {} for name in pools}
    for pod in pods:
        fitting = [name for name, pool in pools.items() if pod.gpu <= pool.gpu and left[name] > 0]
        if pod.due_at <= now and not pod.may_get_stock and pod.unit_uid not in recorded and fitting:
            name = min(fitting, key=lambda name: (pools[name].gpu, name))
            left[name] -= 1
            added[name][pod.unit_uid] = recorded[pod.unit_uid] = now
    if all(_hold_end(each, recorded) <= now for each in pods):
        return None
    pool = pools[key]
    own = {uid: time for uid, time in pool.given_way_to.items() if recorded.get(uid) == time}
    return GiveWay(min(pool.replicas, pool.running) - len(added[key]), own | added[key])


def until_change(pools: Mapping[ObjectKey, YieldingPool], waiting: Iterable[WaitingPod], now: datetime) -> float | None:
    """Return the seconds until a pool must give way, or need not wait any longer. Return None if no pod waits."""
    recorded = _records(pools, now)
    times = (time for each in waiting for time in (each.due_at, _hold_end(each, recorded)))
    return min(((each - now).total_seconds() for each in times if each > now), default=None)


def _hold_end(pod: WaitingPod, recorded: Mapping[str, datetime]) -> datetime:
    """Return the time from which the pools may start further pods although this pod waits."""
    return recorded.get(pod.unit_uid, pod.due_at) + timedelta(seconds=MAX_HOLD_SECONDS)


def _records(pools: Mapping[ObjectKey, YieldingPool], now: datetime) -> dict[str, datetime]:
    """Return the units to which the pools have given way not long ago, and when."""
    expired = now - timedelta(seconds=REPEAT_SECONDS)
    records = (record for pool in pools.values() for record in pool.given_way_to.items())
    return {uid: time for uid, time in records if time > expired}
