"""Decides how many pods an adoptable pool deletes for units that wait for GPUs. Pure.

Pods of adoptable pools have the priority of units, because a pod keeps its priority when it becomes the pod of a unit.
So the scheduler does not preempt them for a unit. Instead, the pool itself gives way: if the scheduler could not place
the pod of a unit for `GIVE_WAY_DELAY_SECONDS`, one pool deletes one pod that reserves enough GPUs. While the unit
waits, no adoptable pool starts further pods, which would need GPUs, too.

Not every unit can start after a pool has deleted a pod, for example because no node has enough memory. So the pools
give way to each pod of a unit once, and not longer than `MAX_GIVE_WAY_SECONDS`. An annotation of the pool's Deployment
records the pods. The number of replicas is written together with the annotation.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from gpu_runtime.kube.meta import ObjectKey

GIVE_WAY_DELAY_SECONDS = 10
MAX_GIVE_WAY_SECONDS = 60


@dataclass(frozen=True)
class WaitingPod:
    """The pod of a unit that the scheduler cannot place, because no node has enough free GPUs."""

    uid: str
    gpu: int
    since: datetime

    def is_due(self, now: datetime) -> bool:
        due = self.since + timedelta(seconds=GIVE_WAY_DELAY_SECONDS)
        return due <= now < due + timedelta(seconds=MAX_GIVE_WAY_SECONDS)


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
    given_way_to: frozenset[str] = frozenset()
    """UIDs of the pods of units to which the pool has given way."""


@dataclass(frozen=True)
class GiveWay:
    max_replicas: int
    """The number of pods that the pool keeps."""
    given_way_to: frozenset[str]


def give_way(
    key: ObjectKey, pools: Mapping[ObjectKey, YieldingPool], waiting: Iterable[WaitingPod], now: datetime
) -> GiveWay | None:
    """Return how the pool with this key gives way, or None if no unit needs it.

    Every pool decides for all pools in the same way, so two pools do not give way to the same unit.
    """
    due = sorted((each for each in waiting if each.is_due(now)), key=lambda each: (each.since, each.uid))
    if not due:
        return None
    recorded = frozenset[str]().union(*(pool.given_way_to for pool in pools.values()))
    left = {name: min(pool.replicas, pool.running) - pool.claimed for name, pool in pools.items()}
    added: dict[ObjectKey, set[str]] = {name: set() for name in pools}
    for pod in due:
        fitting = [name for name, pool in pools.items() if pod.gpu <= pool.gpu and left[name] > 0]
        if pod.uid not in recorded and fitting:
            name = min(fitting, key=lambda name: (pools[name].gpu, name))
            left[name] -= 1
            added[name].add(pod.uid)
    pool = pools[key]
    still_waiting = pool.given_way_to & {each.uid for each in due}
    max_replicas = min(pool.replicas, pool.running) - len(added[key])
    return GiveWay(max_replicas, still_waiting | added[key])


def until_change(waiting: Iterable[WaitingPod], now: datetime) -> float | None:
    """Return the seconds until a unit has waited long enough, or too long. Return None if there is none."""
    delays = (GIVE_WAY_DELAY_SECONDS, GIVE_WAY_DELAY_SECONDS + MAX_GIVE_WAY_SECONDS)
    times = ((each.since + timedelta(seconds=delay) - now).total_seconds() for each in waiting for delay in delays)
    return min((each for each in times if each > 0), default=None)
