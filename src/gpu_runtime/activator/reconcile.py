"""Reconciles the workers of one function: observes them, decides what to change, and applies the decisions.

The reconciler runs only on the leader.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from gpu_runtime.activator.autoscaler import (
    CreateWorkers,
    DrainWorker,
    ObservedFunction,
    RetireWorker,
    ScalingDecision,
    StartFunctionUnit,
    StopFunctionUnit,
    Worker,
    WorkerState,
    decide,
    is_outdated,
    worker_state,
)
from gpu_runtime.activator.backlog import Backlog
from gpu_runtime.activator.function_lister import FunctionLister, is_function
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import ScalingSettings
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.activator.worker_lifecycle import WorkerLifecycle
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.activator.worker_names import free_slots, worker_name
from gpu_runtime.contract.crd.conditions import READY_CONDITION, find_condition
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.kube.controller import Done, ReconcileResult, RequeueAfter
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.meta import ObjectKey

logger = logging.getLogger(__name__)

IDLE_REQUEUE_SECONDS = 10.0
"""Seconds until the next reconciliation of a function without backlog and without surplus workers."""

UNRECORDED_WORKER_GRACE_SECONDS = 10.0
"""Age in seconds at which the activator deletes a worker that is not recorded. Before that, the previous leader may
still record it."""

MAX_SCALE_UP_STEP = 32
"""Maximum number of workers that one reconciliation of a function creates. The next one creates the others."""


@dataclass(frozen=True)
class FunctionReconciler:
    functions: FunctionLister
    liveness: WorkerLiveness
    backlog: Backlog
    lifecycle: WorkerLifecycle
    nats: NatsConnection
    topology: StreamTopology
    settings: ScalingSettings
    metrics: ActivatorMetrics
    clock: Callable[[], float]
    seconds_since: Callable[[str | None], float]
    """Returns the seconds since a Kubernetes timestamp."""
    worker_backoff: WorkerBackoff
    recorder: EventRecorder
    _ensured_consumers: set[str] = field(default_factory=set)
    """functionIDs of functions for which this process has already called ensure_consumer()."""
    _reported_ceilings: dict[ObjectKey, tuple[str, int]] = field(default_factory=dict)
    """UID and generation of each function whose maxWorkers this process has reported as too high."""
    _worker_states: dict[ObjectKey, Counter[WorkerState]] = field(default_factory=dict)
    _state_totals: Counter[WorkerState] = field(default_factory=Counter)

    async def reconcile(self, unit: GPUUnit) -> ReconcileResult:
        if self.functions.is_worker(unit):
            return await self._reconcile_worker(unit)
        if is_function(unit):
            return await self._reconcile_function(unit)
        self._record_states(unit.metadata.key, Counter())
        return Done()

    async def _reconcile_function(self, function: GPUUnit) -> ReconcileResult:
        if self.functions.queue_of(function) is None:  # the controller manager has not created it yet
            return Done()
        await _gather_all(
            self._remove_or_record(function, each) for each in self.functions.unrecorded_workers(function)
        )
        seen = await self.observe(function)
        self._report_worker_ceiling(function)
        decisions = decide(seen)
        for decision in decisions:
            self.metrics.scaling_decisions.labels(decision.label).inc()
        self._record_states(function.metadata.key, Counter(worker.state for worker in seen.workers))
        await _gather_all(self._apply_decision(seen, decision) for decision in decisions)
        idle = not decisions and seen.outstanding == 0 and len(seen.workers) <= seen.serverless.min_available_count
        return RequeueAfter(IDLE_REQUEUE_SECONDS if idle else self.settings.poll_interval_seconds)

    def _report_worker_ceiling(self, function: GPUUnit) -> None:
        """Record an Event if maxWorkers exceeds the ceiling.

        Record it once for each generation of the function, because every repetition is a write to the API server.
        """
        metadata, ceiling = function.metadata, self.settings.max_workers_per_function
        max_workers = function.spec.serverless.max_workers if function.spec.serverless else 0
        if max_workers <= ceiling or self._reported_ceilings.get(metadata.key) == (metadata.uid, metadata.generation):
            return
        self._reported_ceilings[metadata.key] = (metadata.uid, metadata.generation)
        text = f"maxWorkers is {max_workers}, but the activator creates at most {ceiling} workers for each function"
        self.recorder.warning(GPU_UNITS, function, "WorkersLimited", f"{text}: lower maxWorkers", action="Scale")

    async def _reconcile_worker(self, unit: GPUUnit) -> ReconcileResult:
        """Remove a worker whose function does not exist, as soon as the worker runs no invocation.

        The reconciliation of a function handles all other workers.
        """
        if (
            unit.metadata.deletion_timestamp
            or self.functions.function_of(unit) is not None
            or self.functions.function_named_by(unit) is not None
            or not self.functions.cache_is_fresh()
        ):
            return Done()
        return await self._remove_orphan(unit)

    async def _remove_or_record(self, function: GPUUnit, unit: GPUUnit) -> None:
        """Remove a unit that names the function in `workerOf`, but that no queue records.

        Every user who can create units can set `workerOf`, so this activator may not have created the unit. If this
        process has sent the create request of the unit and got no response, repeat the request. It returns the worker.
        """
        if unit.metadata.deletion_timestamp or not self.functions.cache_is_fresh():
            return
        if self.lifecycle.is_pending(unit.metadata.key):
            await self.lifecycle.create(function, unit.metadata.name)
        elif self.seconds_since(unit.metadata.creation_timestamp) > UNRECORDED_WORKER_GRACE_SECONDS:
            await self._remove_orphan(unit)

    async def _remove_orphan(self, unit: GPUUnit) -> ReconcileResult:
        worker = self._observe_worker(unit, unit)
        if worker.state in (WorkerState.RETIRING, WorkerState.UNHEALTHY):
            await self.lifecycle.retire(unit)
            return Done()
        if worker.state is WorkerState.STARTING and self._heartbeat_expected(unit):
            await self.lifecycle.retire(unit)  # the worker sent no event, so it runs no invocation
            return Done()
        return Done() if await self._drain_and_retire(worker) else RequeueAfter(self.settings.poll_interval_seconds)

    def on_unit_deleted(self, key: ObjectKey) -> None:
        """Remove the state of a deleted unit."""
        self._record_states(key, Counter())
        self.worker_backoff.remove(key)
        self._reported_ceilings.pop(key, None)

    def on_stopped_leading(self) -> None:
        """Reset the worker metrics and backoffs. The new leader reports its own metrics."""
        for key in tuple(self._worker_states):
            self.on_unit_deleted(key)

    async def observe(self, function: GPUUnit) -> ObservedFunction:
        key = function.metadata.key
        workers = [self._observe_worker(unit, function) for unit in self.functions.workers(function)]
        if function.spec.running:
            workers.append(self._observe_worker(function, function))
        for worker in self.worker_backoff.observe(key, workers, self.liveness, self.clock()):
            self.recorder.warning(GPU_UNITS, function, "WorkerFailed", worker_failure_message(worker), action="Scale")
        return ObservedFunction(
            function=function,
            workers=tuple(workers),
            outstanding=await self._outstanding(function),
            may_create=self.worker_backoff.allows_create(key, self.clock()),
            worker_ceiling=self.settings.max_workers_per_function,
        )

    def _observe_worker(self, unit: GPUUnit, function: GPUUnit) -> Worker:
        status, now, is_function_unit = self.liveness.status_of(unit.metadata.key), self.clock(), unit is function
        age_seconds = self.seconds_since(unit.metadata.creation_timestamp)
        subscribed_seconds = now - self.liveness.subscribed_at
        silent_seconds = min(subscribed_seconds, age_seconds if status is None else now - status.last_seen)
        state = worker_state(unit, status, silent_seconds, self.settings)
        idle_seconds = now - status.idle_since if status and status.idle_since is not None else None
        outdated = not is_function_unit and is_outdated(unit.spec, function.spec)
        return Worker(unit, state, idle_seconds, outdated, is_function_unit)

    def _heartbeat_expected(self, unit: GPUUnit) -> bool:
        """Return whether this process would have received an event of the worker by now, if the worker were running.

        True if the worker was created after this process subscribed to worker events, or if the process subscribed
        longer ago than the ack wait of the DISPATCH stream. The settings of workers require several heartbeats within
        this time.
        """
        subscribed_seconds = self.clock() - self.liveness.subscribed_at
        age_seconds = self.seconds_since(unit.metadata.creation_timestamp)
        timeout = self.topology.limits.dispatch_ack_wait_seconds
        return subscribed_seconds > timeout or age_seconds < subscribed_seconds

    async def _outstanding(self, function: GPUUnit) -> int | None:
        queue = self.functions.queue_of(function)
        if queue is None:
            return None
        function_id = queue.spec.function_id
        if function_id not in self._ensured_consumers and not await self._ensure_consumer(function_id):
            return None
        return await self.backlog.count(function_id)

    async def _ensure_consumer(self, function_id: str) -> bool:
        consumer = self.topology.dispatch_consumer(function_id)
        try:
            await ensure_consumer(self.nats, consumer)
        except JetStreamError as error:
            fields = {
                "function_id": function_id,
                "stream": consumer.stream,
                "consumer": consumer.name,
                "error": str(error),
            }
            logger.warning("consumer setup failed; the autoscaler will retry", extra=fields)
            return False
        self._ensured_consumers.add(function_id)
        return True

    async def _apply_decision(self, seen: ObservedFunction, decision: ScalingDecision) -> None:
        match decision:
            case CreateWorkers(count):
                await self._create_workers(seen, count)
            case DrainWorker(worker, force):
                await self._drain_and_retire(worker, force=force)
            case RetireWorker(worker):
                await self.lifecycle.retire(worker.unit)
            case StartFunctionUnit():
                await self.lifecycle.set_running(seen.function, running=True)
            case StopFunctionUnit(worker):
                if await self._drain_confirmed(worker):
                    await self.lifecycle.set_running(worker.unit, running=False)
                    self.liveness.remove(worker.unit.metadata.key)

    async def _create_workers(self, seen: ObservedFunction, count: int) -> None:
        key, max_workers = seen.function.metadata.key, seen.serverless.max_workers
        # Read the workers from the cache again. Otherwise a worker that appeared in the cache after the observation
        # would count as a unit of another owner, and the function would get an additional slot for it.
        own_names = {unit.metadata.name for unit in self.functions.units_naming(key)}
        function_units = sum(worker.is_function_unit for worker in seen.workers)
        count = max(0, min(count, MAX_SCALE_UP_STEP, max_workers - function_units - len(own_names)))

        def is_taken(name: str) -> bool:
            return self.functions.units.store.get(ObjectKey(key.namespace, name)) is not None

        slot_names = [worker_name(key.name, slot) for slot in range(max_workers)]
        foreign = sum(is_taken(name) and name not in own_names for name in slot_names)
        slots = free_slots(key.name, max_workers - function_units, count, is_taken, foreign)
        names = [worker_name(key.name, slot) for slot in slots]
        stock = await self.functions.available_stock(seen.function.spec, len(names))
        # If there is not enough stock, create the remaining workers without the runtime API. A call without stock would
        # create an Operation that does not finish.
        await _gather_all(
            self.lifecycle.create(seen.function, name, without_stock=number >= stock)
            for number, name in enumerate(names)
        )

    async def _drain_and_retire(self, worker: Worker, *, force: bool = False) -> bool:
        """Drain and retire a worker. Return False if the worker did not confirm the drain or still runs invocations."""
        if not await self._drain_confirmed(worker, force=force):
            return False
        await self.lifecycle.retire(worker.unit)
        return True

    async def _drain_confirmed(self, worker: Worker, *, force: bool = False) -> bool:
        """Drain the recorded pod of the worker. Another pod must not confirm that the worker may be deleted."""
        status, pod_uid = self.liveness.status_of(worker.unit.metadata.key), worker.unit.status.pod_uid
        if status is None or not pod_uid or status.pod_uid != pod_uid:
            return False
        self.worker_backoff.record_drain_request(worker.unit)
        response = await self.lifecycle.drain(worker.unit, pod_uid, force=force)
        return response is not None and response.accepted and response.in_flight == 0

    def _record_states(self, key: ObjectKey, states: Counter[WorkerState]) -> None:
        before = self._worker_states.pop(key, Counter())
        if states:
            self._worker_states[key] = states
        for state in before.keys() | states.keys():
            self._state_totals[state] += states[state] - before[state]
            self.metrics.workers.labels(state.value).set(self._state_totals[state])


def worker_failure_message(worker: Worker) -> str:
    """Return the message of the Event that reports a failed worker on its function."""
    unit = worker.unit
    if worker.state is WorkerState.DRAINING:
        return f"worker {unit.metadata.name} drained itself soon after its start and will be replaced after a backoff"
    ready = find_condition(unit.status.conditions, READY_CONDITION)
    reason = (
        f"{ready.reason}: {ready.message}"
        if ready and ready.status != "True"
        else "the activator received no heartbeat"
    )
    return f"worker {unit.metadata.name} is unhealthy and will be replaced after a backoff: {reason}"


async def _gather_all(steps: Iterable[Awaitable[None]]) -> None:
    """Await all steps concurrently. A failed step does not cancel the others. At the end, raise the first error."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
