"""Keeps the workers of one function true: look, decide, carry out. The leader alone does this."""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field

from gpu_runtime.activator.autoscaler import (
    Create,
    Decision,
    Drain,
    Observed,
    Retire,
    Sleep,
    Wake,
    Worker,
    WorkerState,
    decide,
    is_outdated,
    state_of,
)
from gpu_runtime.activator.backlog import Backlog
from gpu_runtime.activator.function_lister import Functions, is_function
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Scaling
from gpu_runtime.activator.worker_backoff import Setbacks
from gpu_runtime.activator.worker_lifecycle import Lifecycle
from gpu_runtime.activator.worker_liveness import Workers
from gpu_runtime.activator.worker_names import free_slots, worker_name
from gpu_runtime.contract.crd.conditions import READY, find
from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS, GPUUnit
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.kube.controller import Outcome, RecheckIn, Settled
from gpu_runtime.kube.event_recorder import Recorder
from gpu_runtime.kube.meta import Key

logger = logging.getLogger(__name__)

QUIET = 10.0
"""Seconds between looks at a function that needs nothing."""

AT_ONCE = 32
"""How many workers of one function are asked for at a time. The next ones are asked for when these are there."""

HEARABLE = 15.0
"""Seconds within which every worker that lives says so."""


@dataclass(frozen=True)
class FunctionReconciler:
    functions: Functions
    workers: Workers
    backlog: Backlog
    lifecycle: Lifecycle
    nats: Connection
    topology: Topology
    settings: Scaling
    metrics: ActivatorMetrics
    clock: Callable[[], float]
    wall: Callable[[str | None], float]
    """Seconds since a moment of the cluster's clock."""
    setbacks: Setbacks
    recorder: Recorder
    _queues: set[str] = field(default_factory=set)
    """Functions whose consumers were seen to be there."""
    _states: dict[Key, Counter[WorkerState]] = field(default_factory=dict)
    _total: Counter[WorkerState] = field(default_factory=Counter)

    async def reconcile(self, unit: GPUUnit) -> Outcome:
        if self.functions.is_worker(unit):
            return await self._worker(unit)
        if is_function(unit):
            return await self._function(unit)
        self._count(unit.metadata.key, Counter())
        return Settled()

    async def _function(self, function: GPUUnit) -> Outcome:
        seen = await self.observe(function)
        decisions = decide(seen)
        for decision in decisions:
            self.metrics.decisions.labels(type(decision).__name__).inc()
        self._count(function.metadata.key, Counter(worker.state for worker in seen.workers))
        await _all(self._carry_out(seen, decision) for decision in decisions)
        return RecheckIn(self._pause(seen, decisions))

    async def _worker(self, unit: GPUUnit) -> Outcome:
        """A worker is looked at with its function. One whose function is gone goes when it has no work."""
        if unit.metadata.deletion_timestamp or self.functions.of(unit) is not None or not self.functions.certain():
            return Settled()
        worker = self._seen(unit, unit)
        if worker.state in (WorkerState.RETIRING, WorkerState.BROKEN):
            await self.lifecycle.retire(unit)
            return Settled()
        if worker.state is WorkerState.STARTING and self._would_be_known(unit):
            await self.lifecycle.retire(unit)  # nobody has heard of it, so it has no work
            return Settled()
        return Settled() if await self._drained(worker) else RecheckIn(self.settings.pass_seconds)

    def forget(self, key: Key) -> None:
        """The unit is gone."""
        self._count(key, Counter())
        self.setbacks.forget(key)

    def leave(self) -> None:
        """Another process leads: what it sees counts."""
        for key in tuple(self._states):
            self.forget(key)

    async def observe(self, function: GPUUnit) -> Observed:
        said, key = function.spec.serverless, function.metadata.key
        request_id = said.request_id if said else ""
        found = [self._seen(unit, function) for unit in self.functions.workers(key)]
        if function.spec.running:
            found.append(self._seen(function, function))
        for worker in self.setbacks.note(key, found, self.workers, self.clock()):
            self.recorder.warning(GPU_UNITS, function, "WorkerFailed", failure_note(worker.unit), action="Scale")
        return Observed(
            function=function,
            workers=tuple(found),
            outstanding=await self._outstanding(function, request_id),
            may_create=self.setbacks.over(key, self.clock()),
        )

    def _seen(self, unit: GPUUnit, function: GPUUnit) -> Worker:
        heard, now, own = self.workers.of(unit.metadata.key), self.clock(), unit is function
        age = self.wall(unit.metadata.creation_timestamp)
        deaf = now - self.workers.listening_since
        waited = min(deaf, age if heard is None else now - heard.at)
        state = state_of(unit, heard, waited, self.settings)
        idle = now - heard.idle_since if heard and heard.idle_since is not None else None
        outdated = not own and is_outdated(unit.spec, function.spec)
        return Worker(unit, state, idle, outdated, own)

    def _would_be_known(self, unit: GPUUnit) -> bool:
        """Whether a worker that speaks would have been heard: it began after us, or had the time to say it again."""
        listened = self.clock() - self.workers.listening_since
        return listened > HEARABLE or self.wall(unit.metadata.creation_timestamp) < listened

    async def _outstanding(self, function: GPUUnit, request_id: str) -> int | None:
        if self.functions.serving(request_id) is not function:
            return 0  # another function of the same requestID is older, and has the queue
        if request_id not in self._queues and not await self._has_queue(request_id):
            return None
        return await self.backlog.of(request_id)

    async def _has_queue(self, request_id: str) -> bool:
        try:
            await ensure_consumer(self.nats, self.topology.work(request_id))
        except StreamError as error:
            logger.warning("a function has no consumer yet", extra={"requestID": request_id, "error": str(error)})
            return False
        self._queues.add(request_id)
        return True

    async def _carry_out(self, seen: Observed, decision: Decision) -> None:
        match decision:
            case Create(count):
                await self._create(seen, count)
            case Drain(worker, finishing):
                await self._drained(worker, finishing=finishing)
            case Retire(worker):
                await self.lifecycle.retire(worker.unit)
            case Wake():
                await self.lifecycle.switch(seen.function, running=True)
            case Sleep(worker):
                await self._sleep(worker)

    async def _create(self, seen: Observed, count: int) -> None:
        key, most = seen.function.metadata.key, seen.wants.max_workers
        # As the cache has them now: those that came since the look would pass for strangers, and make room for more.
        mine = {unit.metadata.name for unit in self.functions.workers(key)}
        own = sum(worker.own for worker in seen.workers)
        count = max(0, min(count, AT_ONCE, most - own - len(mine)))

        def taken(name: str) -> bool:
            return self.functions.units.store.get(Key(key.namespace, name)) is not None

        foreign = sum(taken(name) and name not in mine for name in (worker_name(key.name, n) for n in range(most)))
        slots = free_slots(key.name, most - own, count, taken, foreign)
        stock = self.functions.stock(seen.function.spec.spec_name)
        names = [worker_name(key.name, slot) for slot in slots]
        # Where there is none, the API is not even asked: every such question leaves an unfinished operation behind.
        await _all(self.lifecycle.make(seen.function, name, cold=number >= stock) for number, name in enumerate(names))

    async def _drained(self, worker: Worker, *, finishing: bool = False) -> bool:
        """Whether the worker agreed to go, and went."""
        if not await self._agrees(worker, finishing=finishing):
            return False
        await self.lifecycle.retire(worker.unit)
        return True

    async def _sleep(self, worker: Worker) -> None:
        if await self._agrees(worker):
            await self.lifecycle.switch(worker.unit, running=False)
            self.workers.forget(worker.unit.metadata.key)

    async def _agrees(self, worker: Worker, *, finishing: bool = False) -> bool:
        heard = self.workers.of(worker.unit.metadata.key)
        if heard is None or not heard.instance:
            return False
        answer = await self.lifecycle.drain(worker.unit, heard.instance, finishing=finishing)
        return answer is not None and answer.draining and answer.in_flight == 0

    def _pause(self, seen: Observed, decisions: list[Decision]) -> float:
        quiet = not decisions and seen.outstanding == 0 and len(seen.workers) <= seen.wants.min_available_count
        return QUIET if quiet else self.settings.pass_seconds

    def _count(self, key: Key, states: Counter[WorkerState]) -> None:
        before = self._states.pop(key, Counter())
        if states:
            self._states[key] = states
        for state in before.keys() | states.keys():
            self._total[state] += states[state] - before[state]
            self.metrics.workers.labels(state.value).set(self._total[state])


def failure_note(unit: GPUUnit) -> str:
    """Why a worker is given up, for whoever looks at the function."""
    ready = find(unit.status.conditions, READY)
    why = f"{ready.reason}: {ready.message}" if ready and ready.status != "True" else "it was not heard of"
    return f"worker {unit.metadata.name} does not serve and is replaced, later each time; {why}"


async def _all(steps: Iterable[Awaitable[None]]) -> None:
    """All at once, and each to its end whatever becomes of the others. The first failure is raised."""
    outcomes = await asyncio.gather(*steps, return_exceptions=True)
    for outcome in outcomes:
        if isinstance(outcome, BaseException):
            raise outcome
