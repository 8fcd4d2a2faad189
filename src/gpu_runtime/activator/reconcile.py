"""Keeps the workers of one function true: look, decide, carry out. The leader alone does this."""

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
"""Seconds between looks at a function that needs nothing."""

MAX_SCALE_UP_STEP = 32
"""How many workers of one function are asked for at a time. The next ones are asked for when these are there."""

HEARTBEAT_TIMEOUT_SECONDS = 15.0
"""Seconds within which every worker that lives says so."""


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
    """Seconds since a moment of the cluster's clock."""
    worker_backoff: WorkerBackoff
    recorder: EventRecorder
    _ensured_consumers: set[str] = field(default_factory=set)
    """Functions whose consumers were seen to be there."""
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
        seen = await self.observe(function)
        decisions = decide(seen)
        for decision in decisions:
            self.metrics.scaling_decisions.labels(type(decision).__name__).inc()
        self._record_states(function.metadata.key, Counter(worker.state for worker in seen.workers))
        await _gather_all(self._apply_decision(seen, decision) for decision in decisions)
        return RequeueAfter(self._requeue_seconds(seen, decisions))

    async def _reconcile_worker(self, unit: GPUUnit) -> ReconcileResult:
        """A worker is looked at with its function. One whose function is gone goes when it has no work."""
        if (
            unit.metadata.deletion_timestamp
            or self.functions.function_of(unit) is not None
            or not self.functions.cache_is_fresh()
        ):
            return Done()
        worker = self._observe_worker(unit, unit)
        if worker.state in (WorkerState.RETIRING, WorkerState.UNHEALTHY):
            await self.lifecycle.retire(unit)
            return Done()
        if worker.state is WorkerState.STARTING and self._heartbeat_expected(unit):
            await self.lifecycle.retire(unit)  # nobody has heard of it, so it has no work
            return Done()
        return Done() if await self._drain_and_retire(worker) else RequeueAfter(self.settings.poll_interval_seconds)

    def on_unit_deleted(self, key: ObjectKey) -> None:
        """The unit is gone."""
        self._record_states(key, Counter())
        self.worker_backoff.remove(key)

    def on_stopped_leading(self) -> None:
        """Another process leads: what it sees counts."""
        for key in tuple(self._worker_states):
            self.on_unit_deleted(key)

    async def observe(self, function: GPUUnit) -> ObservedFunction:
        said, key = function.spec.serverless, function.metadata.key
        request_id = said.request_id if said else ""
        found = [self._observe_worker(unit, function) for unit in self.functions.workers(key)]
        if function.spec.running:
            found.append(self._observe_worker(function, function))
        for worker in self.worker_backoff.observe(key, found, self.liveness, self.clock()):
            self.recorder.warning(
                GPU_UNITS, function, "WorkerFailed", worker_failure_message(worker.unit), action="Scale"
            )
        return ObservedFunction(
            function=function,
            workers=tuple(found),
            outstanding=await self._outstanding(function, request_id),
            may_create=self.worker_backoff.allows_create(key, self.clock()),
        )

    def _observe_worker(self, unit: GPUUnit, function: GPUUnit) -> Worker:
        heard, now, own = self.liveness.status_of(unit.metadata.key), self.clock(), unit is function
        age = self.seconds_since(unit.metadata.creation_timestamp)
        deaf = now - self.liveness.subscribed_at
        waited = min(deaf, age if heard is None else now - heard.last_seen)
        state = worker_state(unit, heard, waited, self.settings)
        idle = now - heard.idle_since if heard and heard.idle_since is not None else None
        outdated = not own and is_outdated(unit.spec, function.spec)
        return Worker(unit, state, idle, outdated, own)

    def _heartbeat_expected(self, unit: GPUUnit) -> bool:
        """Whether a worker that speaks would have been heard: it began after us, or had the time to say it again."""
        listened = self.clock() - self.liveness.subscribed_at
        return listened > HEARTBEAT_TIMEOUT_SECONDS or self.seconds_since(unit.metadata.creation_timestamp) < listened

    async def _outstanding(self, function: GPUUnit, request_id: str) -> int | None:
        if self.functions.by_request_id(request_id) is not function:
            return 0  # another function of the same requestID is older, and has the queue
        if request_id not in self._ensured_consumers and not await self._ensure_consumer(request_id):
            return None
        return await self.backlog.count(request_id)

    async def _ensure_consumer(self, request_id: str) -> bool:
        try:
            await ensure_consumer(self.nats, self.topology.dispatch_consumer(request_id))
        except JetStreamError as error:
            logger.warning("a function has no consumer yet", extra={"requestID": request_id, "error": str(error)})
            return False
        self._ensured_consumers.add(request_id)
        return True

    async def _apply_decision(self, seen: ObservedFunction, decision: ScalingDecision) -> None:
        match decision:
            case CreateWorkers(count):
                await self._create_workers(seen, count)
            case DrainWorker(worker, finishing):
                await self._drain_and_retire(worker, force=finishing)
            case RetireWorker(worker):
                await self.lifecycle.retire(worker.unit)
            case StartFunctionUnit():
                await self.lifecycle.set_running(seen.function, running=True)
            case StopFunctionUnit(worker):
                await self._stop_function_unit(worker)

    async def _create_workers(self, seen: ObservedFunction, count: int) -> None:
        key, most = seen.function.metadata.key, seen.serverless.max_workers
        # As the cache has them now: those that came since the look would pass for strangers, and make room for more.
        mine = {unit.metadata.name for unit in self.functions.workers(key)}
        own = sum(worker.is_function_unit for worker in seen.workers)
        count = max(0, min(count, MAX_SCALE_UP_STEP, most - own - len(mine)))

        def taken(name: str) -> bool:
            return self.functions.units.store.get(ObjectKey(key.namespace, name)) is not None

        foreign = sum(taken(name) and name not in mine for name in (worker_name(key.name, n) for n in range(most)))
        slots = free_slots(key.name, most - own, count, taken, foreign)
        stock = self.functions.available_stock(seen.function.spec.spec_name)
        names = [worker_name(key.name, slot) for slot in slots]
        # Where there is none, the API is not even asked: every such question leaves an unfinished operation behind.
        await _gather_all(
            self.lifecycle.create(seen.function, name, without_stock=number >= stock)
            for number, name in enumerate(names)
        )

    async def _drain_and_retire(self, worker: Worker, *, force: bool = False) -> bool:
        """Whether the worker agreed to go, and went."""
        if not await self._drain_confirmed(worker, force=force):
            return False
        await self.lifecycle.retire(worker.unit)
        return True

    async def _stop_function_unit(self, worker: Worker) -> None:
        if await self._drain_confirmed(worker):
            await self.lifecycle.set_running(worker.unit, running=False)
            self.liveness.remove(worker.unit.metadata.key)

    async def _drain_confirmed(self, worker: Worker, *, force: bool = False) -> bool:
        heard = self.liveness.status_of(worker.unit.metadata.key)
        if heard is None or not heard.pod_uid:
            return False
        answer = await self.lifecycle.drain(worker.unit, heard.pod_uid, force=force)
        return answer is not None and answer.accepted and answer.in_flight == 0

    def _requeue_seconds(self, seen: ObservedFunction, decisions: list[ScalingDecision]) -> float:
        quiet = not decisions and seen.outstanding == 0 and len(seen.workers) <= seen.serverless.min_available_count
        return IDLE_REQUEUE_SECONDS if quiet else self.settings.poll_interval_seconds

    def _record_states(self, key: ObjectKey, states: Counter[WorkerState]) -> None:
        before = self._worker_states.pop(key, Counter())
        if states:
            self._worker_states[key] = states
        for state in before.keys() | states.keys():
            self._state_totals[state] += states[state] - before[state]
            self.metrics.workers.labels(state.value).set(self._state_totals[state])


def worker_failure_message(unit: GPUUnit) -> str:
    """Why a worker is given up, for whoever looks at the function."""
    ready = find_condition(unit.status.conditions, READY_CONDITION)
    why = f"{ready.reason}: {ready.message}" if ready and ready.status != "True" else "it was not heard of"
    return f"worker {unit.metadata.name} does not serve and is replaced, later each time; {why}"


async def _gather_all(steps: Iterable[Awaitable[None]]) -> None:
    """All at once, and each to its end whatever becomes of the others. The first failure is raised."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
