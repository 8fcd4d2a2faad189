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

from gpu_runtime.activator.settings import ScalingSettings
from gpu_runtime.activator.worker_liveness import WorkerStatus
from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.well_known import Annotation


class WorkerState(StrEnum):
    STARTING = "starting"
    """It has not been heard of yet, and may still come."""
    SERVING = "serving"
    DRAINING = "draining"
    """It takes no more work."""
    UNHEALTHY = "unhealthy"
    """It did not come, or has not been heard of, for longer than is waited for."""
    RETIRING = "retiring"
    """Its end is decided and under way."""
    TERMINATING = "terminating"
    """It is deleted, and holds its name until its remains are gone."""


@dataclass(frozen=True)
class Worker:
    unit: GPUUnit
    state: WorkerState
    idle_seconds: float | None = None
    """Seconds for which it has had nothing in hand; None where it has something, or has not said so."""
    outdated: bool = False
    is_function_unit: bool = False
    """Whether it is the function's own unit."""

    @property
    def provides_capacity(self) -> bool:
        """Whether work may be expected of it."""
        return self.state in (WorkerState.STARTING, WorkerState.SERVING)


@dataclass(frozen=True)
class ObservedFunction:
    function: GPUUnit
    workers: tuple[Worker, ...]
    """Its own unit is among them while it is to run."""
    outstanding: int | None
    """What waits for the function or is in its workers' hands; None where that is not known."""
    may_create: bool = True
    """False while workers of the function fail, and no more are made for a while."""

    @property
    def serverless(self) -> Serverless:
        return self.function.spec.serverless or Serverless()

    @property
    def single_worker(self) -> bool:
        """Whether its own unit is the only worker it can have: a storage is mounted by one unit at a time."""
        return bool(self.function.spec.storage_mounts)


@dataclass(frozen=True)
class CreateWorkers:
    count: int


@dataclass(frozen=True)
class DrainWorker:
    """Ask whether it can go, and let it go if so."""

    worker: Worker
    force: bool = False
    """Whether it is to take no more work even if it has some in hand."""


@dataclass(frozen=True)
class RetireWorker:
    """Let it go: it has no work in hand."""

    worker: Worker


@dataclass(frozen=True)
class StartFunctionUnit:
    """Let the function's own unit run."""


@dataclass(frozen=True)
class StopFunctionUnit:
    """Stop the function's own unit if it agrees."""

    worker: Worker


ScalingDecision = CreateWorkers | DrainWorker | RetireWorker | StartFunctionUnit | StopFunctionUnit


def desired_workers(wants: Serverless, outstanding: int) -> int:
    most = max(1, wants.max_workers)
    return min(most, max(wants.min_available_count, math.ceil(outstanding / max(1, wants.concurrency))))


def decide(seen: ObservedFunction) -> list[ScalingDecision]:
    return (
        _scale_single_worker(seen)
        if seen.single_worker
        else [*_remove_unusable(seen), *_drain_busy(seen), *_scale(seen)]
    )


def worker_state(unit: GPUUnit, heard: WorkerStatus | None, waited: float, patience: ScalingSettings) -> WorkerState:
    """What a unit is as a worker. `waited` is for how long it could have been heard and was not."""
    if unit.metadata.deletion_timestamp:
        return WorkerState.TERMINATING
    if Annotation.RETIRING in unit.metadata.annotations:
        return WorkerState.RETIRING
    failed = unit.status.phase == UnitPhase.FAILED.value
    if waited > (patience.failed_worker_grace_seconds if failed else patience.worker_liveness_timeout_seconds):
        return WorkerState.UNHEALTHY
    if heard is None:
        return WorkerState.STARTING
    return WorkerState.DRAINING if heard.draining else WorkerState.SERVING


def is_outdated(worker: GPUUnitSpec, function: GPUUnitSpec) -> bool:
    """Whether a worker that is made now would be another one. Memory and GPUs are not looked at: with
    stock they are the stock's."""
    one, other = worker.serverless, function.serverless
    serving = one is None or other is None or (one.framework, one.concurrency) != (other.framework, other.concurrency)
    return serving or (worker.image, worker.template) != (function.image, function.template)


def _remove_unusable(seen: ObservedFunction) -> list[ScalingDecision]:
    """What to do about workers that serve no more, or are not what the function is now."""
    found: list[ScalingDecision] = []
    for worker in seen.workers:
        if worker.is_function_unit:
            continue
        if worker.state in (WorkerState.UNHEALTHY, WorkerState.RETIRING):
            found.append(RetireWorker(worker))
        elif worker.state is WorkerState.DRAINING or (worker.outdated and worker.idle_seconds is not None):
            found.append(DrainWorker(worker))
    return found


def _drain_busy(seen: ObservedFunction) -> list[ScalingDecision]:
    """Of an older version, or above the limit, and all such are busy. While one goes or comes, the others serve."""
    excess = len(seen.workers) > max(1, seen.serverless.max_workers)
    overdue = [worker for worker in seen.workers if not worker.is_function_unit and (worker.outdated or excess)]
    changing = any(worker.state is not WorkerState.SERVING for worker in seen.workers)
    if not overdue or changing or any(worker.idle_seconds is not None for worker in overdue):
        return []
    return [DrainWorker(max(overdue, key=lambda worker: (worker.outdated, _name_order(worker))), force=True)]


def _scale(seen: ObservedFunction) -> list[ScalingDecision]:
    wants = seen.serverless
    capacity = sum(worker.provides_capacity for worker in seen.workers)
    wanted = wants.min_available_count if seen.outstanding is None else desired_workers(wants, seen.outstanding)
    if capacity < wanted:
        count = min(wanted - capacity, wants.max_workers - len(seen.workers))
        return [CreateWorkers(count)] if count > 0 and seen.may_create else []
    if seen.outstanding is None:
        return []
    return [DrainWorker(worker) for worker in _surplus(seen, capacity, wanted)]


def _surplus(seen: ObservedFunction, capacity: int, wanted: int) -> Sequence[Worker]:
    """Those that are not needed and have been idle for long enough. Above the limit, being idle is enough."""
    needed_idle = 0.0 if capacity > seen.serverless.max_workers else float(seen.serverless.idle_timeout_seconds)
    idle = [
        worker
        for worker in seen.workers
        if worker.state is WorkerState.SERVING
        and not worker.is_function_unit
        and not worker.outdated
        and worker.idle_seconds is not None
        and worker.idle_seconds >= needed_idle
    ]
    # The last slots first: the first ones stay, and with them the names that people have seen.
    return sorted(idle, key=_name_order, reverse=True)[: capacity - wanted]


def _name_order(worker: Worker) -> tuple[int, str]:
    """The names of slots end with their numbers."""
    return len(worker.unit.metadata.name), worker.unit.metadata.name


def _scale_single_worker(seen: ObservedFunction) -> list[ScalingDecision]:
    """A function whose own unit is its only worker: it wakes for work, and sleeps when it has been idle."""
    own = next((worker for worker in seen.workers if worker.is_function_unit), None)
    wanted = (
        seen.serverless.min_available_count
        if seen.outstanding is None
        else desired_workers(seen.serverless, seen.outstanding)
    )
    if own is None:
        return [StartFunctionUnit()] if wanted > 0 and _is_stopped(seen.function) else []
    if own.state is WorkerState.DRAINING:
        return [StopFunctionUnit(own)]  # it takes no more work; if there is some, the next one does
    idle = own.idle_seconds is not None and own.idle_seconds >= seen.serverless.idle_timeout_seconds
    surplus = wanted == 0 and seen.outstanding is not None
    return [StopFunctionUnit(own)] if surplus and idle and own.state is WorkerState.SERVING else []


def _is_stopped(function: GPUUnit) -> bool:
    """Whether its last pod is gone. Woken earlier, it would go on with that one, which takes no more work."""
    return function.status.phase in (None, UnitPhase.EMPTY.value)
