"""Assembles and runs the activator process.

Every replica dispatches invocations. Only the leader scales workers and reaps invocations.
"""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import aiohttp
import msgspec
from nats.aio.msg import Msg

from gpu_runtime.activator.backlog import Backlog
from gpu_runtime.activator.backlog_poller import BacklogPoller
from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.reconcile import FunctionReconciler
from gpu_runtime.activator.runtime_api_client import RuntimeAPIClient
from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.activator.worker_backoff import WorkerBackoff
from gpu_runtime.activator.worker_lifecycle import WorkerLifecycle
from gpu_runtime.activator.worker_liveness import WorkerLiveness
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import CANCEL, DEMAND, BadSubject, Subjects
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.store import ObjectChange
from gpu_runtime.process.health_server import HealthCheck, serve_health
from gpu_runtime.process.kubernetes import connect_kubernetes, new_candidate
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import connect_nats_or_fault, fault_from_nats_error, nats_options, stream_topology
from gpu_runtime.process.runner import run_process, unless_stopped
from gpu_runtime.process.ticket_key_file import TicketKeyFile

PROCESS_NAME = "activator"
MAX_CLOCK_DIFFERENCE = timedelta(seconds=60)
"""Maximum difference between the clocks of two nodes. The activator ignores events with a higher sequence."""
RECONCILE_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=10.0)


def main(config: Path) -> int:
    return run_process(config, ActivatorSettings, run_activator)


async def run_activator(settings: ActivatorSettings, stopping: asyncio.Event) -> None:
    """Dispatch until `stopping` is set. Scale and reap while this replica is the leader."""
    metrics = KubeMetrics(new_registry(PROCESS_NAME))
    async with (
        connect_kubernetes(settings.kubernetes, PROCESS_NAME, metrics) as client,
        connect_nats_or_fault(nats_options(settings.nats, PROCESS_NAME)) as nats,
        aiohttp.ClientSession() as http,
    ):
        activator = new_activator(client, nats, http, settings, metrics)
        async with serve_health(settings.health, metrics.registry, stopping, activator.readiness_checks()):
            await activator.run(stopping)


@dataclass(frozen=True)
class Activator:
    """The components of this process."""

    nats: NatsConnection
    topology: StreamTopology
    functions: FunctionLister
    liveness: WorkerLiveness
    consumer: PullConsumer
    key_file: TicketKeyFile
    leader: "LeaderComponents"

    def readiness_checks(self) -> dict[str, HealthCheck]:
        def caches() -> str | None:
            synced = self.functions.units.has_synced and self.functions.queues.has_synced
            return None if synced else "caches not synced yet"

        return {"caches": caches, "nats": self.nats.problem, "dispatch": self.consumer.problem}

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks, self._subscribed():
            tasks.create_task(self.key_file.watch(stopping))
            tasks.create_task(self._run_consumer(stopping))
            await self.leader.manager.run(stopping)

    async def _run_consumer(self, stopping: asyncio.Event) -> None:
        """Start consuming after the streams exist and the caches are synced, unless `stopping` is set first."""
        await unless_stopped(stopping, self._prepare())
        if not stopping.is_set():
            await self.consumer.run(stopping)

    async def _prepare(self) -> None:
        topology = self.topology
        try:
            await ensure_with_retry(self.nats, topology.streams, [topology.record_bucket], topology.shared_consumers())
        except JetStreamError as error:
            raise fault_from_nats_error(error) from error
        await self.functions.wait_for_sync()

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        """Subscribe to worker events, demand and cancels.

        Every replica subscribes, so a new leader already knows the last event of each worker.
        """
        subjects = self.topology.subjects
        remove_listener = self.nats.add_listener(
            lambda connected: self.liveness.mark_subscribed() if connected else None
        )
        try:
            async with (
                self.nats.subscribed(subjects.all_events, self.leader.on_worker_event),
                self.nats.subscribed(subjects.all_functions(DEMAND), self.leader.on_demand),
                self.nats.subscribed(subjects.all_functions(CANCEL), self.leader.on_cancel),
            ):
                yield
        finally:
            remove_listener()


@dataclass(frozen=True)
class LeaderComponents:
    """The components that act only while this replica is the leader, and the callbacks of the NATS subscriptions.

    The callbacks run on every replica, because every replica subscribes.
    """

    manager: Manager
    subjects: Subjects
    liveness: WorkerLiveness
    capacity: FunctionCapacity
    functions: FunctionLister
    backlog_poller: BacklogPoller
    reaper: InvocationReaper
    metrics: ActivatorMetrics
    is_leader: Callable[[], bool]

    def on_worker_event(self, message: Msg) -> None:
        try:
            event, sender = decode(message.data, WorkerEvent), self.subjects.parse(message.subject)
        except (MessageDecodeError, BadSubject):
            return
        if (sender.function_id, sender.pod_uid) != (event.function_id, event.pod_uid) or is_from_the_future(event):
            return
        unit = self.functions.units.store.get(ObjectKey(event.namespace, event.unit))
        if unit is None or not self._is_sender(unit, event):
            # Ignore events of unknown units, because storing them would need unlimited memory. If the unit of a worker
            # is only missing from the cache, the worker sends another event later.
            return
        if self.functions.is_served_by(unit, event.function_id):
            self.capacity.observe(with_concurrency_of(unit, event))
        first = self.liveness.observe(event)
        if first and self.functions.is_worker(unit) and self.is_leader():
            self.metrics.worker_startup.observe(seconds_since(unit.metadata.creation_timestamp))

    def _is_sender(self, unit: GPUUnit, event: WorkerEvent) -> bool:
        """Return whether the event is from the pod of the unit, which the controller manager recorded in the status.

        An event that arrives before the status is ignored. This does not delay a cold start: a worker pulls its
        invocations itself, and repeats its state with the next heartbeat. The queue of a deleted function is deleted,
        too. Its workers finish their invocations, so their events are valid.
        """
        is_orphan = self.functions.is_worker(unit) and self.functions.function_of(unit) is None
        is_pod = bool(event.pod_uid) and event.pod_uid == unit.status.pod_uid
        return is_pod and (is_orphan or self.functions.is_served_by(unit, event.function_id))

    def on_demand(self, message: Msg) -> None:
        self.backlog_poller.on_demand(message.subject.rpartition(".")[2])

    def on_cancel(self, message: Msg) -> None:
        with contextlib.suppress(UnicodeDecodeError):
            self.reaper.cancel(message.data.decode())


def new_activator(
    client: KubeClient,
    nats: NatsConnection,
    http: aiohttp.ClientSession,
    settings: ActivatorSettings,
    metrics: KubeMetrics,
) -> Activator:
    topology, activator_metrics = stream_topology(settings.nats), ActivatorMetrics(metrics.registry)
    key_file = TicketKeyFile(settings.tickets)
    tickets = key_file.keyring
    publisher, clock = Publisher(nats), asyncio.get_running_loop().time
    functions = FunctionLister(client, settings.namespaces.stock, metrics, system_namespace=settings.namespaces.system)
    liveness, capacity = WorkerLiveness(clock), FunctionCapacity(clock)
    records = InvocationRecordStore(KeyValueBucket(nats, publisher, topology.record_bucket))
    queued_results, dispatched_results = (
        TerminalResultPublisher(
            new_termination_publisher(topology.subjects, publisher, tickets), activator_metrics, stage
        )
        for stage in (TerminationStage.QUEUED, TerminationStage.DISPATCHED)
    )
    ignored = IgnoredMessages(activator_metrics.ignored_messages)
    dispatcher = Dispatcher(
        topology=topology,
        publisher=publisher,
        records=records,
        functions=functions,
        capacity=capacity,
        demand=DemandPublisher(nats, topology.subjects, clock),
        terminal_results=queued_results,
        settings=settings.dispatching,
        metrics=activator_metrics,
        clock=utcnow,
        tickets=tickets,
        ignored=ignored,
    )
    options = ConsumeOptions(
        max_in_flight=settings.dispatching.max_in_flight, max_deliveries=settings.dispatching.max_deliveries
    )
    scaling = settings.scaling
    candidate = new_candidate(client, PROCESS_NAME, settings.namespaces.system, settings.leader_election, metrics)
    lifecycle = WorkerLifecycle(
        client=candidate.client,
        functions=functions,
        stock=RuntimeAPIClient(http, settings.runtime_api),
        nats=nats,
        subjects=topology.subjects,
        is_leader=candidate.is_leader,
        drain_request_timeout_seconds=scaling.drain_request_timeout_seconds,
    )
    backlog = Backlog(nats, topology, clock, cache_ttl_seconds=2 * scaling.poll_interval_seconds)
    reconciler = FunctionReconciler(
        functions=functions,
        liveness=liveness,
        backlog=backlog,
        lifecycle=lifecycle,
        nats=nats,
        topology=topology,
        settings=scaling,
        metrics=activator_metrics,
        clock=clock,
        seconds_since=seconds_since,
        worker_backoff=WorkerBackoff(Backoff(scaling.initial_backoff_seconds, scaling.max_backoff_seconds)),
        recorder=candidate.recorder,
    )
    controller = _new_controller(functions, reconciler, settings, metrics)
    reaper = InvocationReaper(
        nats=nats,
        topology=topology,
        records=records,
        functions=functions,
        terminal_results=dispatched_results,
        settings=settings.reaping,
        metrics=activator_metrics,
        clock=utcnow,
        tickets=tickets,
        ignored=ignored,
    )
    backlog_poller = BacklogPoller(
        backlog, functions, controller.enqueue, scaling.poll_interval_seconds, reconciler.on_stopped_leading
    )
    functions.units.add_event_handler(lambda change: _on_unit_change(change, liveness, capacity, reconciler))
    runnables = (controller, backlog_poller, reaper)
    shutdown_timeout = settings.graceful_shutdown_timeout_seconds
    manager = Manager(
        (functions.units, functions.queues), runnables, candidate.elector, candidate.recorder, shutdown_timeout
    )
    return Activator(
        nats=nats,
        topology=topology,
        functions=functions,
        liveness=liveness,
        consumer=PullConsumer(nats, topology.invoke_consumer, dispatcher.handle, dispatcher.on_dead_letter, options),
        key_file=key_file,
        leader=LeaderComponents(
            manager,
            topology.subjects,
            liveness,
            capacity,
            functions,
            backlog_poller,
            reaper,
            activator_metrics,
            candidate.is_leader,
        ),
    )


def _new_controller(
    functions: FunctionLister, reconciler: FunctionReconciler, settings: ActivatorSettings, metrics: KubeMetrics
) -> Controller[GPUUnit]:
    options = ControllerOptions(
        max_concurrent_reconciles=settings.scaling.max_concurrent_reconciles,
        backoff=RECONCILE_BACKOFF,
        expected_errors=(KubeError, JetStreamError, RuntimeFault),
    )
    controller = Controller("function", functions.units, reconciler.reconcile, options, metrics)
    controller.watches(functions.units, functions.related_keys)
    controller.watches(functions.queues, functions.units_of)
    return controller


def _on_unit_change(
    change: ObjectChange[GPUUnit],
    liveness: WorkerLiveness,
    capacity: FunctionCapacity,
    reconciler: FunctionReconciler,
) -> None:
    """Remove the state of a deleted unit, so that a new unit with the same name starts without state."""
    before, after = change.old, change.new
    if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
        liveness.remove(before.metadata.key)
        capacity.remove(before.metadata.key)
        reconciler.on_unit_deleted(before.metadata.key)


def is_from_the_future(event: WorkerEvent) -> bool:
    """Return whether the sequence of the event is too high. Such an event would hide the later events of its pod.

    The sequence of a worker starts with its clock in milliseconds and grows more slowly than the clock.
    """
    return event.sequence > (utcnow() + MAX_CLOCK_DIFFERENCE).timestamp() * 1000


def with_concurrency_of(unit: GPUUnit, event: WorkerEvent) -> WorkerEvent:
    """Return the event with at most the concurrency of the unit, so that a worker cannot report more."""
    concurrency = unit.spec.serverless.concurrency if unit.spec.serverless else 1
    return msgspec.structs.replace(event, concurrency=min(event.concurrency, concurrency))


def utcnow() -> datetime:
    return datetime.now(UTC)


def seconds_since(timestamp: str | None) -> float:
    """Return the seconds since a Kubernetes timestamp, or 0 if there is none. The timestamp has a precision of 1 s."""
    return max(0.0, (utcnow() - datetime.fromisoformat(timestamp)).total_seconds()) if timestamp else 0.0
