"""Decides how many pods an adoptable pool deletes for units that wait for GPUs. Pure.

Pods of adoptable pools have the priority of units, because a pod keeps its priority when it becomes the pod of a unit.
So the scheduler does not preempt them for a unit. Instead, the pool itself gives way: if the scheduler could not place
the pod of a unit for `GIVE_WAY_DELAY_SECONDS`, one pool deletes one pod that reserves enough GPUs.

The pools give way to each pod of a unit once, because not every unit can start after a pool has deleted a pod. For
example, no node has enough memory. After a pool has given way, no adoptable pool starts further pods for
`MAX_HOLD_SECONDS`, unless the unit has started before. Otherwise these pods could get the GPUs first. The pools also
start no pods while they have no running pod to delete, but not longer than that time after the unit became due.

An annotation of the pool's Deployment records the pods of units and the times. The number of replicas is written
together with the annotation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from gpu_runtime.kube.meta import ObjectKey

GIVE_WAY_DELAY_SECONDS = 10
MAX_HOLD_SECONDS = 60


@dataclass(frozen=True)
class WaitingPod:
    """The pod of a unit that the scheduler cannot place, because no node has enough free GPUs."""

    uid: str
    gpu: int
    since: datetime

    @property
    def due_at(self) -> datetime:
        """When the pools must give way to the pod."""
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
    """When the pool has given way, by the UID of the pod of the unit."""


@dataclass(frozen=True)
class GiveWay:
    max_replicas: int | None
    """The number of pods that the pool keeps. None if it may start further pods again."""
    given_way_to: Mapping[str, datetime]


def give_way(
    key: ObjectKey, pools: Mapping[ObjectKey, YieldingPool], waiting: Iterable[WaitingPod], now: datetime
) -> GiveWay | None:
    """Return how the pool with this key gives way, or None if no unit needs it.

    Every pool decides for all pools in the same way, so two pools do not give way to the same unit.
    """
    due = sorted((each for each in waiting if each.due_at <= now), key=lambda each: (each.since, each.uid))
    recorded = _all_records(pools)
    left = {name: min(pool.replicas, pool.running) - pool.claimed for name, pool in pools.items()}
    added: dict[ObjectKey, dict[str, datetime]] = {name: {} for name in pools}
    for pod in due:
        fitting = [name for name, pool in pools.items() if pod.gpu <= pool.gpu and left[name] > 0]
        if pod.uid not in recorded and fitting:
            name = min(fitting, key=lambda name: (pools[name].gpu, name))
            left[name] -= 1
            added[name][pod.uid] = now
    recorded |= _union(added.values())
    pool = pools[key]
    still_waiting = {each.uid: recorded[each.uid] for each in due if each.uid in {*pool.given_way_to, *added[key]}}
    if any(now < _hold_end(each, recorded) for each in due):
        return GiveWay(min(pool.replicas, pool.running) - len(added[key]), still_waiting)
    return GiveWay(None, still_waiting) if still_waiting else None


def until_change(pools: Mapping[ObjectKey, YieldingPool], waiting: Iterable[WaitingPod], now: datetime) -> float | None:
    """Return the seconds until a unit becomes due, or no longer holds the pools. Return None if there is none."""
    recorded = _all_records(pools)
    times = (time for each in waiting for time in (each.due_at, _hold_end(each, recorded)))
    return min(((each - now).total_seconds() for each in times if each > now), default=None)


def _hold_end(pod: WaitingPod, recorded: Mapping[str, datetime]) -> datetime:
    """Return the time from which the pools may start further pods although this pod waits."""
    return recorded.get(pod.uid, pod.due_at) + timedelta(seconds=MAX_HOLD_SECONDS)


def _all_records(pools: Mapping[ObjectKey, YieldingPool]) -> dict[str, datetime]:
    return _union(pool.given_way_to for pool in pools.values())


def _union(records: Iterable[Mapping[str, datetime]]) -> dict[str, datetime]:
    return {uid: time for each in records for uid, time in each.items()}
