"""Decides how many workers a function needs, and which workers to create and remove.

Nothing here awaits or reads a clock.

- If the backlog is unknown, the autoscaler creates workers only up to minAvailableCount and removes no surplus worker.
- Running invocations count like waiting invocations, so busy workers are never surplus.
- A worker is removed if it was idle for the function's idle timeout and the function has more workers than it needs.
- A worker is also removed if it is unhealthy, draining or outdated.
- If all workers that must be removed are busy, the autoscaler drains one of them with force. A worker that is drained
  with force accepts no more invocations and finishes the running ones. Then it is removed.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import ClassVar

from msgspec import structs

from gpu_runtime.activator.settings import ScalingSettings
from gpu_runtime.activator.worker_liveness import WorkerStatus
from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec, Serverless
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.timing import heartbeat_timeout
from gpu_runtime.contract.validation.pod_policy import DEFAULT_WORKER_CEILING


class WorkerState(StrEnum):
    STARTING = "starting"
    """The activator has received no event of the worker yet, and the liveness timeout has not passed."""
    SERVING = "serving"
    DRAINING = "draining"
    """The worker accepts no more invocations."""
    UNHEALTHY = "unhealthy"
    """The activator has received no event of the worker for longer than the liveness timeout."""
    RETIRING = "retiring"
    """The unit has the retiring annotation and will be deleted."""
    TERMINATING = "terminating"
    """The unit has a deletion timestamp. Its name is in use until its finalizers are removed."""


@dataclass(frozen=True)
class Worker:
    unit: GPUUnit
    state: WorkerState
    idle_seconds: float | None = None
    """Seconds since the worker became idle. None if the worker runs an invocation or has sent no event."""
    outdated: bool = False
    is_function_unit: bool = False
    """Whether this is the function's own unit, which serves as a worker while it runs."""

    @property
    def provides_capacity(self) -> bool:
        """Whether the worker accepts invocations now, or will accept them after it has started."""
        return self.state in (WorkerState.STARTING, WorkerState.SERVING)


@dataclass(frozen=True)
class ObservedFunction:
    function: GPUUnit
    workers: tuple[Worker, ...]
    """The workers of the function, and the function's own unit if spec.running is true."""
    outstanding: int | None
    """Number of waiting and running invocations. None if the number is unknown."""
    may_create: bool = True
    """False during the backoff after a worker failed."""
    worker_ceiling: int = DEFAULT_WORKER_CEILING
    """Maximum number of workers of any function, from the settings."""

    @property
    def serverless(self) -> Serverless:
        """The serverless block of the function. Its numbers of workers are at most the ceiling."""
        serverless = self.function.spec.serverless or Serverless()
        if max(serverless.max_workers, serverless.min_available_count) <= self.worker_ceiling:
            return serverless
        return structs.replace(
            serverless,
            max_workers=min(serverless.max_workers, self.worker_ceiling),
            min_available_count=min(serverless.min_available_count, self.worker_ceiling),
        )


@dataclass(frozen=True)
class CreateWorkers:
    label: ClassVar[str] = "create"
    """Value of the label `decision` of the metric gpu_runtime_scaling_decisions_total."""

    count: int


@dataclass(frozen=True)
class DrainWorker:
    """Send a drain request. Retire the worker if it accepts the request and runs no invocation."""

    label: ClassVar[str] = "drain"
    worker: Worker
    force: bool = False
    """Whether a busy worker must drain too. Without force, a busy worker refuses the request."""


@dataclass(frozen=True)
class RetireWorker:
    """Delete a worker that runs no invocation."""

    label: ClassVar[str] = "retire"
    worker: Worker


@dataclass(frozen=True)
class StartFunctionUnit:
    """Set spec.running of the function's own unit to true."""

    label: ClassVar[str] = "start"


@dataclass(frozen=True)
class StopFunctionUnit:
    """Send a drain request to the function's own unit.

    Set spec.running to false if the unit accepts the request and runs no invocation.
    """

    label: ClassVar[str] = "stop"
    worker: Worker


ScalingDecision = CreateWorkers | DrainWorker | RetireWorker | StartFunctionUnit | StopFunctionUnit


def desired_workers(serverless: Serverless, outstanding: int) -> int:
    needed = math.ceil(outstanding / max(1, serverless.concurrency))
    return min(max(1, serverless.max_workers), max(serverless.min_available_count, needed))


def decide(seen: ObservedFunction) -> list[ScalingDecision]:
    if seen.function.spec.storage_mounts:
        return _scale_single_worker(seen)
    return [*_remove_unusable(seen), *_drain_busy(seen), *_scale(seen)]


def worker_state(
    unit: GPUUnit, status: WorkerStatus | None, silent_seconds: float, settings: ScalingSettings
) -> WorkerState:
    """Return the state of a worker.

    `silent_seconds` is the time since the last event of the worker. Time in which this process could not receive events
    does not count.
    """
    if unit.metadata.deletion_timestamp:
        return WorkerState.TERMINATING
    if Annotation.RETIRING in unit.metadata.annotations:
        return WorkerState.RETIRING
    failed = unit.status.phase == UnitPhase.FAILED.value
    timeout = settings.failed_worker_grace_seconds if failed else settings.worker_liveness_timeout_seconds
    if silent_seconds > max(timeout, heartbeat_timeout(status.heartbeat_seconds) if status else 0):
        return WorkerState.UNHEALTHY
    if status is None:
        return WorkerState.STARTING
    return WorkerState.DRAINING if status.draining else WorkerState.SERVING


def is_outdated(worker: GPUUnitSpec, function: GPUUnitSpec) -> bool:
    """Return whether a worker that is created now would differ from this worker.

    Memory and GPUs are not compared, because a worker from stock has the memory and GPUs of the stock unit.
    """
    old, new = worker.serverless, function.serverless
    serverless_changed = (
        old is None or new is None or (old.framework, old.concurrency) != (new.framework, new.concurrency)
    )
    pods_differ = any(getattr(worker, name) != getattr(function, name) for name in ("image", "template", "probes"))
    return serverless_changed or pods_differ


def _remove_unusable(seen: ObservedFunction) -> list[ScalingDecision]:
    """Retire unhealthy and retiring workers. Send drain requests to draining workers and to idle outdated workers."""
    decisions: list[ScalingDecision] = []
    for worker in seen.workers:
        if worker.is_function_unit:
            continue
        if worker.state in (WorkerState.UNHEALTHY, WorkerState.RETIRING):
            decisions.append(RetireWorker(worker))
        elif worker.state is WorkerState.DRAINING or (worker.outdated and worker.idle_seconds is not None):
            decisions.append(DrainWorker(worker))
    return decisions


def _drain_busy(seen: ObservedFunction) -> list[ScalingDecision]:
    """Drain one busy worker with force if all workers that must be removed are busy.

    A worker must be removed if it is outdated, or if the function has more workers than maxWorkers. If any worker is
    not serving (for example, it is starting or draining), drain none, so that the other workers continue to serve.
    """
    excess = len(seen.workers) > max(1, seen.serverless.max_workers)
    removable = [worker for worker in seen.workers if not worker.is_function_unit and (worker.outdated or excess)]
    in_transition = any(worker.state is not WorkerState.SERVING for worker in seen.workers)
    if not removable or in_transition or any(worker.idle_seconds is not None for worker in removable):
        return []
    return [DrainWorker(max(removable, key=lambda worker: (worker.outdated, _name_order(worker))), force=True)]


def _scale(seen: ObservedFunction) -> list[ScalingDecision]:
    capacity, desired = sum(worker.provides_capacity for worker in seen.workers), _desired(seen)
    if capacity < desired:
        count = min(desired - capacity, seen.serverless.max_workers - len(seen.workers))
        return [CreateWorkers(count)] if count > 0 and seen.may_create else []
    if seen.outstanding is None:
        return []
    return [DrainWorker(worker) for worker in _surplus(seen, capacity, desired)]


def _desired(seen: ObservedFunction) -> int:
    if seen.outstanding is None:
        return seen.serverless.min_available_count
    return desired_workers(seen.serverless, seen.outstanding)


def _surplus(seen: ObservedFunction, capacity: int, desired: int) -> Sequence[Worker]:
    """Return the surplus workers that were idle for the idle timeout.

    If the function has more workers than maxWorkers, the idle timeout is 0.
    """
    idle_timeout = 0.0 if capacity > seen.serverless.max_workers else float(seen.serverless.idle_timeout_seconds)
    idle = [
        worker
        for worker in seen.workers
        if worker.state is WorkerState.SERVING
        and not worker.is_function_unit
        and not worker.outdated
        and worker.idle_seconds is not None
        and worker.idle_seconds >= idle_timeout
    ]
    # Remove the highest slots first. The remaining workers then have the lowest slots, and their names rarely change.
    return sorted(idle, key=_name_order, reverse=True)[: capacity - desired]


def _name_order(worker: Worker) -> tuple[int, str]:
    """Return the sort key for the slot number, which is the suffix of the name. A shorter name has a lower number."""
    return len(worker.unit.metadata.name), worker.unit.metadata.name


def _scale_single_worker(seen: ObservedFunction) -> list[ScalingDecision]:
    """Scale a function whose own unit is its only worker, because it has storages, which only one unit can mount.

    Start the unit if the function has outstanding invocations or a minAvailableCount. Otherwise stop the unit after the
    idle timeout.
    """
    own_unit, desired = next((worker for worker in seen.workers if worker.is_function_unit), None), _desired(seen)
    if own_unit is None:
        return [StartFunctionUnit()] if desired > 0 and _is_stopped(seen.function) else []
    if own_unit.state is WorkerState.DRAINING:
        return [StopFunctionUnit(own_unit)]  # the next pod of the unit runs the invocations that wait
    idle = own_unit.idle_seconds is not None and own_unit.idle_seconds >= seen.serverless.idle_timeout_seconds
    surplus = desired == 0 and seen.outstanding is not None
    return [StopFunctionUnit(own_unit)] if surplus and idle and own_unit.state is WorkerState.SERVING else []


def _is_stopped(function: GPUUnit) -> bool:
    """Return whether the last pod of the unit has ended.

    If the unit were started earlier, it would continue with this pod, which is draining and accepts no invocations.
    """
    return function.status.phase in (None, UnitPhase.EMPTY.value)
