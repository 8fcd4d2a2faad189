"""How many workers a function should have, and what to do about it. Pure: what was seen goes in, decisions come out.

- A backlog that is not known changes nothing; only the workers that are always kept are made without it.
- Work in hand counts like waiting work, so busy workers are never surplus.
- A worker goes when it has been idle for the function's time and more are there than are needed, or when it is of no
  use: it does not come up, it takes no more work, or it is of an older version of its function.
- One that should go and always has work in hand takes no more, and goes when it has finished: one at a time.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from gpu_runtime.activator.settings import Scaling
from gpu_runtime.activator.worker_liveness import Heard
from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.well_known import Annotation


class WorkerState(StrEnum):
    STARTING = "starting"
    """It has not been heard of yet, and may still come."""
    SERVING = "serving"
    DRAINING = "draining"
    """It takes no more work."""
    BROKEN = "broken"
    """It did not come, or has not been heard of, for longer than is waited for."""
    RETIRING = "retiring"
    """Its end is decided and under way."""
    LEAVING = "leaving"
    """It is deleted, and holds its name until its remains are gone."""


@dataclass(frozen=True)
class Worker:
    unit: GPUUnit
    state: WorkerState
    idle: float | None = None
    """Seconds for which it has had nothing in hand; None where it has something, or has not said so."""
    outdated: bool = False
    own: bool = False
    """Whether it is the function's own unit."""

    @property
    def counts(self) -> bool:
        """Whether work may be expected of it."""
        return self.state in (WorkerState.STARTING, WorkerState.SERVING)


@dataclass(frozen=True)
class Observed:
    function: GPUUnit
    workers: tuple[Worker, ...]
    """Its own unit is among them while it is to run."""
    outstanding: int | None
    """What waits for the function or is in its workers' hands; None where that is not known."""
    may_create: bool = True
    """False while workers of the function fail, and no more are made for a while."""

    @property
    def wants(self) -> Serverless:
        return self.function.spec.serverless or Serverless()

    @property
    def alone(self) -> bool:
        """Whether its own unit is the only worker it can have: a storage is mounted by one unit at a time."""
        return bool(self.function.spec.storage_mounts)


@dataclass(frozen=True)
class Create:
    count: int


@dataclass(frozen=True)
class Drain:
    """Ask whether it can go, and let it go if so."""

    worker: Worker
    finishing: bool = False
    """Whether it is to take no more work even if it has some in hand."""


@dataclass(frozen=True)
class Retire:
    """Let it go: it has no work in hand."""

    worker: Worker


@dataclass(frozen=True)
class Wake:
    """Let the function's own unit run."""


@dataclass(frozen=True)
class Sleep:
    """Stop the function's own unit if it agrees."""

    worker: Worker


Decision = Create | Drain | Retire | Wake | Sleep


def desired(wants: Serverless, outstanding: int) -> int:
    most = max(1, wants.max_workers)
    return min(most, max(wants.min_available_count, math.ceil(outstanding / max(1, wants.concurrency))))


def decide(seen: Observed) -> list[Decision]:
    return _alone(seen) if seen.alone else [*_useless(seen), *_overdue(seen), *_scaled(seen)]


def state_of(unit: GPUUnit, heard: Heard | None, waited: float, patience: Scaling) -> WorkerState:
    """What a unit is as a worker. `waited` is for how long it could have been heard and was not."""
    if unit.metadata.deletion_timestamp:
        return WorkerState.LEAVING
    if Annotation.RETIRING in unit.metadata.annotations:
        return WorkerState.RETIRING
    failed = unit.status.phase == UnitPhase.FAILED.value
    if waited > (patience.failed_seconds if failed else patience.start_seconds):
        return WorkerState.BROKEN
    if heard is None:
        return WorkerState.STARTING
    return WorkerState.DRAINING if heard.draining else WorkerState.SERVING


def is_outdated(worker: GPUUnitSpec, function: GPUUnitSpec) -> bool:
    """Whether a worker that is made now would be another one. Memory and GPUs are not looked at: with
    stock they are the stock's."""
    one, other = worker.serverless, function.serverless
    serving = one is None or other is None or (one.framework, one.concurrency) != (other.framework, other.concurrency)
    return serving or (worker.image, worker.template) != (function.image, function.template)


def _useless(seen: Observed) -> list[Decision]:
    """What to do about workers that serve no more, or are not what the function is now."""
    found: list[Decision] = []
    for worker in seen.workers:
        if worker.own:
            continue
        if worker.state in (WorkerState.BROKEN, WorkerState.RETIRING):
            found.append(Retire(worker))
        elif worker.state is WorkerState.DRAINING or (worker.outdated and worker.idle is not None):
            found.append(Drain(worker))
    return found


def _overdue(seen: Observed) -> list[Decision]:
    """Of an older version, or above the limit, and all such are busy. While one goes or comes, the others serve."""
    excess = len(seen.workers) > max(1, seen.wants.max_workers)
    overdue = [worker for worker in seen.workers if not worker.own and (worker.outdated or excess)]
    changing = any(worker.state is not WorkerState.SERVING for worker in seen.workers)
    if not overdue or changing or any(worker.idle is not None for worker in overdue):
        return []
    return [Drain(max(overdue, key=lambda worker: (worker.outdated, _place(worker))), finishing=True)]


def _scaled(seen: Observed) -> list[Decision]:
    wants = seen.wants
    capacity = sum(worker.counts for worker in seen.workers)
    wanted = wants.min_available_count if seen.outstanding is None else desired(wants, seen.outstanding)
    if capacity < wanted:
        count = min(wanted - capacity, wants.max_workers - len(seen.workers))
        return [Create(count)] if count > 0 and seen.may_create else []
    if seen.outstanding is None:
        return []
    return [Drain(worker) for worker in _surplus(seen, capacity, wanted)]


def _surplus(seen: Observed, capacity: int, wanted: int) -> Sequence[Worker]:
    """Those that are not needed and have been idle for long enough. Above the limit, being idle is enough."""
    needed_idle = 0.0 if capacity > seen.wants.max_workers else float(seen.wants.idle_timeout_seconds)
    idle = [
        worker
        for worker in seen.workers
        if worker.state is WorkerState.SERVING
        and not worker.own
        and not worker.outdated
        and worker.idle is not None
        and worker.idle >= needed_idle
    ]
    # The last slots first: the first ones stay, and with them the names that people have seen.
    return sorted(idle, key=_place, reverse=True)[: capacity - wanted]


def _place(worker: Worker) -> tuple[int, str]:
    """The names of slots end with their numbers."""
    return len(worker.unit.metadata.name), worker.unit.metadata.name


def _alone(seen: Observed) -> list[Decision]:
    """A function whose own unit is its only worker: it wakes for work, and sleeps when it has been idle."""
    own = next((worker for worker in seen.workers if worker.own), None)
    wanted = seen.wants.min_available_count if seen.outstanding is None else desired(seen.wants, seen.outstanding)
    if own is None:
        return [Wake()] if wanted > 0 and _is_asleep(seen.function) else []
    if own.state is WorkerState.DRAINING:
        return [Sleep(own)]  # it takes no more work; if there is some, the next one does
    idle = own.idle is not None and own.idle >= seen.wants.idle_timeout_seconds
    surplus = wanted == 0 and seen.outstanding is not None
    return [Sleep(own)] if surplus and idle and own.state is WorkerState.SERVING else []


def _is_asleep(function: GPUUnit) -> bool:
    """Whether its last pod is gone. Woken earlier, it would go on with that one, which takes no more work."""
    return function.status.phase in (None, UnitPhase.EMPTY.value)
