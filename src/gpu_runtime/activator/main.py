"""The activator: dispatch on every replica; workers and waiting work in the care of the one that leads."""

import asyncio
import contextlib
import os
import socket
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import aiohttp
from nats.aio.msg import Msg

from gpu_runtime.activator.backlog import Backlog
from gpu_runtime.activator.backlog_poller import BacklogPoller
from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.function_lister import FunctionLister, serves_request_id
from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.metrics import ActivatorMetrics
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
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from gpu_runtime.jetstream.connection import MessageCallback, NatsConnection, connect_nats
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.election import LeaderElectionConfig, LeaderElector
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.event_recorder import EventRecorder
from gpu_runtime.kube.manager import Manager
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.store import ObjectChange
from gpu_runtime.process.health_server import HealthCheck, serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_from_nats_error, nats_options, stream_topology

PROCESS_NAME = "activator"
RECONCILE_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=10.0)


async def run_activator(settings: ActivatorSettings, stopping: asyncio.Event) -> None:
    """Dispatch until told to stop; scale and reap while leading."""
    metrics = KubeMetrics(new_registry(PROCESS_NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_cluster_config(kubeconfig, settings.kubernetes.context or None)
    async with (
        open_kube_client(config, field_manager=PROCESS_NAME, metrics=metrics) as connected,
        connect_nats(nats_options(settings.nats, PROCESS_NAME)) as nats,
        aiohttp.ClientSession() as http,
    ):
        client = connected.with_options(settings.kubernetes.request_timeout_seconds, RetryPolicy())
        activator = new_activator(client, nats, http, settings, metrics)
        async with serve_health(settings.health, metrics.registry, stopping, activator.readiness_checks()):
            await activator.run(stopping)


@dataclass(frozen=True)
class Activator:
    """The parts of this process."""

    nats: NatsConnection
    topology: StreamTopology
    functions: FunctionLister
    liveness: WorkerLiveness
    consumer: PullConsumer
    leader: "LeaderComponents"

    def readiness_checks(self) -> dict[str, HealthCheck]:
        def caches() -> str | None:
            return None if self.functions.units.has_synced else "the caches are not complete yet"

        return {"caches": caches, "nats": self.nats.problem, "dispatch": self.consumer.problem}

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks, self._subscribed():
            tasks.create_task(self._run_consumer(stopping))
            await self.leader.manager.run(stopping)

    async def _run_consumer(self, stopping: asyncio.Event) -> None:
        """Begin when streams and caches are there, or never, if the end comes first."""
        async with asyncio.TaskGroup() as tasks:
            preparing = tasks.create_task(self._prepare())
            waiting = tasks.create_task(stopping.wait())
            await asyncio.wait({preparing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            preparing.cancel()
        if not stopping.is_set():
            await self.consumer.run(stopping)

    async def _prepare(self) -> None:
        topology = self.topology
        try:
            await ensure_with_retry(self.nats, topology.streams, [topology.record_bucket], topology.shared_consumers())
        except JetStreamError as error:
            raise fault_from_nats_error(error) from error
        await self.functions.units.wait_for_sync()

    @asynccontextmanager
    async def _subscribed(self) -> AsyncIterator[None]:
        """Hear what workers, dispatchers and callers tell, whether this process leads or not."""
        subjects = self.topology.subjects
        heard: Sequence[tuple[str, MessageCallback]] = (
            (subjects.all_events, self.leader.on_worker_event),
            (subjects.all_demand, self.leader.on_demand),
            (subjects.all_cancels, self.leader.on_cancel),
        )
        unlisten = self.nats.add_listener(lambda there: self.liveness.mark_subscribed() if there else None)
        subscriptions = [await self.nats.subscribe(subject, receive) for subject, receive in heard]
        try:
            yield
        finally:
            unlisten()
            for subscription in subscriptions:
                await self.nats.unsubscribe(subscription)


@dataclass(frozen=True)
class LeaderComponents:
    """What this process does while it leads, and what it hears of all the time."""

    manager: Manager
    liveness: WorkerLiveness
    capacity: FunctionCapacity
    functions: FunctionLister
    backlog_poller: BacklogPoller
    reaper: InvocationReaper
    metrics: ActivatorMetrics
    is_leader: Callable[[], bool]

    def on_worker_event(self, message: Msg) -> None:
        try:
            event = decode(message.data, WorkerEvent)
        except MessageDecodeError:
            return
        unit = self.functions.units.store.get(ObjectKey(event.namespace, event.unit))
        if unit is None or not serves_request_id(unit, event.serverless_request_id):
            return  # strangers have no end; and a worker that is not known here yet says it again with each heartbeat
        self.capacity.observe(event)
        first = self.liveness.observe(event)
        if first and self.functions.is_worker(unit) and self.is_leader():
            self.metrics.worker_startup.observe(seconds_since(unit.metadata.creation_timestamp))

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
    topology, own = stream_topology(settings.nats), ActivatorMetrics(metrics.registry)
    publisher, clock = Publisher(nats), asyncio.get_running_loop().time
    functions = FunctionLister(client, settings.namespaces.stock, metrics)
    workers, room, records = (
        WorkerLiveness(clock),
        FunctionCapacity(clock),
        KeyValueBucket(nats, publisher, topology.record_bucket),
    )
    endings = TerminalResultPublisher(topology.subjects, publisher, own)
    demand = DemandPublisher(nats, topology.subjects, clock)
    dispatcher = Dispatcher(
        topology=topology,
        publisher=publisher,
        records=records,
        functions=functions,
        capacity=room,
        demand=demand,
        terminal_results=endings,
        settings=settings.dispatching,
        metrics=own,
        clock=utcnow,
    )
    policy = ConsumeOptions(
        max_in_flight=settings.dispatching.max_in_flight, max_deliveries=settings.dispatching.max_deliveries
    )
    elector = _new_elector(client, settings, metrics)
    scaling, leads = settings.scaling, elector.leadership.is_leader if elector else _always_leader
    writer = client.fenced(elector.leadership) if elector else client
    recorder = EventRecorder(writer, PROCESS_NAME, _identity(), metrics=metrics)
    lifecycle = WorkerLifecycle(
        client=writer,
        functions=functions,
        stock=RuntimeAPIClient(http, settings.runtime_api),
        nats=nats,
        subjects=topology.subjects,
        is_leader=leads,
        system_namespace=settings.namespaces.system,
        drain_request_timeout_seconds=scaling.drain_request_timeout_seconds,
    )
    backlog = Backlog(nats, topology, clock, cache_ttl_seconds=2 * scaling.poll_interval_seconds)
    reconciler = FunctionReconciler(
        functions=functions,
        liveness=workers,
        backlog=backlog,
        lifecycle=lifecycle,
        nats=nats,
        topology=topology,
        settings=scaling,
        metrics=own,
        clock=clock,
        seconds_since=seconds_since,
        worker_backoff=WorkerBackoff(Backoff(scaling.initial_backoff_seconds, scaling.max_backoff_seconds)),
        recorder=recorder,
    )
    controller = _new_controller(functions, reconciler, settings, metrics)
    reaper = InvocationReaper(nats, topology, records, functions, endings, settings.reaping, own, utcnow)
    lookout = BacklogPoller(
        backlog, functions, controller.enqueue, scaling.poll_interval_seconds, reconciler.on_stopped_leading
    )
    functions.units.add_event_handler(lambda change: _on_unit_deleted(change, workers, room, reconciler))
    work = (controller, lookout, reaper)
    ensemble = Manager((functions.units,), work, elector, recorder, settings.graceful_shutdown_timeout_seconds)
    return Activator(
        nats=nats,
        topology=topology,
        functions=functions,
        liveness=workers,
        consumer=PullConsumer(
            publisher, topology.invoke_consumer, dispatcher.handle, dispatcher.on_dead_letter, policy
        ),
        leader=LeaderComponents(ensemble, workers, room, functions, lookout, reaper, own, leads),
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
    return controller


def _on_unit_deleted(
    change: ObjectChange[GPUUnit], workers: WorkerLiveness, room: FunctionCapacity, reconciler: FunctionReconciler
) -> None:
    """A unit that is gone says nothing more, and one that comes under its name is another one."""
    before, after = change.old, change.new
    if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
        workers.mark_unit_deleted(before.metadata.key)
        room.remove(before.metadata.key)
        reconciler.on_unit_deleted(before.metadata.key)


def _new_elector(client: KubeClient, settings: ActivatorSettings, metrics: KubeMetrics) -> LeaderElector | None:
    election = settings.leader_election
    if not election.enabled:
        return None
    timing = LeaderElectionConfig(
        election.lease_duration_seconds, election.renew_deadline_seconds, election.retry_period_seconds
    )
    return LeaderElector(client, ObjectKey(settings.namespaces.system, PROCESS_NAME), _identity(), timing, metrics)


def _identity() -> str:
    return os.environ.get("POD_NAME") or socket.gethostname()


def _always_leader() -> bool:
    return True


def utcnow() -> datetime:
    return datetime.now(UTC)


def seconds_since(moment: str | None) -> float:
    """Seconds since a moment of the cluster's clock. It is written without fractions."""
    return max(0.0, (utcnow() - datetime.fromisoformat(moment)).total_seconds()) if moment else 0.0
