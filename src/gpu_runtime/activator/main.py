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
from gpu_runtime.activator.backlog_poller import Lookout
from gpu_runtime.activator.capacity import Room
from gpu_runtime.activator.demand_publisher import Demand
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.function_lister import Functions, serves
from gpu_runtime.activator.invocation_reaper import Reaper
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.reconcile import FunctionReconciler
from gpu_runtime.activator.runtime_api_client import StockAPI
from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.activator.terminal_results import Endings
from gpu_runtime.activator.worker_backoff import Setbacks
from gpu_runtime.activator.worker_lifecycle import Lifecycle
from gpu_runtime.activator.worker_liveness import Workers
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.messages.message_codec import Unreadable, decode
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.worker_event import WorkerEvent
from gpu_runtime.jetstream.connection import Connection, Receive, connection
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.controller import Controller, ControllerOptions
from gpu_runtime.kube.election import Elector, Timing
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.event_recorder import Recorder
from gpu_runtime.kube.manager import Ensemble
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.kube.store import Change
from gpu_runtime.process.health_server import Check, serve_endpoints
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_of, options_of, topology_of

NAME = "activator"
PATIENT = Backoff(first=0.2, longest=10.0)


async def activate(settings: ActivatorSettings, stopping: asyncio.Event) -> None:
    """Dispatch until told to stop; scale and reap while leading."""
    metrics = KubeMetrics(new_registry(NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_config(kubeconfig, settings.kubernetes.context or None)
    async with (
        connect(config, field_manager=NAME, metrics=metrics) as connected,
        connection(options_of(settings.nats, NAME)) as nats,
        aiohttp.ClientSession() as http,
    ):
        client = connected.patient(settings.kubernetes.request_timeout_seconds, RetryPolicy())
        activator = assemble(client, nats, http, settings, metrics)
        async with serve_endpoints(settings.endpoints, metrics.registry, stopping, activator.ready()):
            await activator.run(stopping)


@dataclass(frozen=True)
class Activator:
    """The parts of this process."""

    nats: Connection
    topology: Topology
    functions: Functions
    workers: Workers
    dispatching: Consumption
    leading: "Leading"

    def ready(self) -> dict[str, Check]:
        def caches() -> str | None:
            return None if self.functions.units.has_synced else "the caches are not complete yet"

        return {"caches": caches, "nats": self.nats.problem, "dispatch": self.dispatching.problem}

    async def run(self, stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup() as tasks, self._listening():
            tasks.create_task(self._dispatch(stopping))
            await self.leading.ensemble.run(stopping)

    async def _dispatch(self, stopping: asyncio.Event) -> None:
        """Begin when streams and caches are there, or never, if the end comes first."""
        async with asyncio.TaskGroup() as tasks:
            preparing = tasks.create_task(self._prepare())
            waiting = tasks.create_task(stopping.wait())
            await asyncio.wait({preparing, waiting}, return_when=asyncio.FIRST_COMPLETED)
            waiting.cancel()
            preparing.cancel()
        if not stopping.is_set():
            await self.dispatching.run(stopping)

    async def _prepare(self) -> None:
        topology = self.topology
        try:
            await ensure_until_done(self.nats, topology.streams, [topology.state], topology.consumers())
        except StreamError as error:
            raise fault_of(error) from error
        await self.functions.units.synced()

    @asynccontextmanager
    async def _listening(self) -> AsyncIterator[None]:
        """Hear what workers, dispatchers and callers tell, whether this process leads or not."""
        subjects = self.topology.subjects
        heard: Sequence[tuple[str, Receive]] = (
            (subjects.all_events, self.leading.event),
            (subjects.all_demand, self.leading.demand),
            (subjects.all_cancels, self.leading.cancel),
        )
        unlisten = self.nats.listen(lambda there: self.workers.listening() if there else None)
        subscriptions = [await self.nats.subscribe(subject, receive) for subject, receive in heard]
        try:
            yield
        finally:
            unlisten()
            for subscription in subscriptions:
                await self.nats.unsubscribe(subscription)


@dataclass(frozen=True)
class Leading:
    """What this process does while it leads, and what it hears of all the time."""

    ensemble: Ensemble
    workers: Workers
    room: Room
    functions: Functions
    lookout: Lookout
    reaper: Reaper
    metrics: ActivatorMetrics
    leads: Callable[[], bool]

    def event(self, message: Msg) -> None:
        try:
            event = decode(message.data, WorkerEvent)
        except Unreadable:
            return
        unit = self.functions.units.store.get(Key(event.namespace, event.worker))
        if unit is None or not serves(unit, event.serverless_request_id):
            return  # strangers have no end; and a worker that is not known here yet says it again with each heartbeat
        self.room.hear(event)
        first = self.workers.hear(event)
        if first and self.functions.is_worker(unit) and self.leads():
            self.metrics.time_to_worker.observe(seconds_since(unit.metadata.creation_timestamp))

    def demand(self, message: Msg) -> None:
        self.lookout.demanded(message.subject.rpartition(".")[2])

    def cancel(self, message: Msg) -> None:
        with contextlib.suppress(UnicodeDecodeError):
            self.reaper.take_back(message.data.decode())


def assemble(
    client: Client,
    nats: Connection,
    http: aiohttp.ClientSession,
    settings: ActivatorSettings,
    metrics: KubeMetrics,
) -> Activator:
    topology, own = topology_of(settings.nats), ActivatorMetrics(metrics.registry)
    publisher, clock = Publisher(nats), asyncio.get_running_loop().time
    functions = Functions(client, settings.namespaces.stock, metrics)
    workers, room, records = Workers(clock), Room(clock), Bucket(nats, publisher, topology.state)
    endings = Endings(topology.subjects, publisher, own)
    demand = Demand(nats, topology.subjects, clock)
    dispatcher = Dispatcher(
        topology=topology,
        publisher=publisher,
        records=records,
        functions=functions,
        room=room,
        demand=demand,
        endings=endings,
        settings=settings.dispatching,
        metrics=own,
        clock=utcnow,
    )
    policy = Policy(at_once=settings.dispatching.at_once, attempts=settings.dispatching.attempts)
    elector = _elector(client, settings, metrics)
    scaling, leads = settings.scaling, elector.leadership.still_leading if elector else _always
    writer = client.fenced(elector.leadership) if elector else client
    recorder = Recorder(writer, NAME, _identity(), metrics=metrics)
    lifecycle = Lifecycle(
        client=writer,
        functions=functions,
        stock=StockAPI(http, settings.api),
        nats=nats,
        subjects=topology.subjects,
        leading=leads,
        system_namespace=settings.namespaces.system,
        drain_seconds=scaling.drain_seconds,
    )
    backlog = Backlog(nats, topology, clock, good_for=2 * scaling.pass_seconds)
    reconciler = FunctionReconciler(
        functions=functions,
        workers=workers,
        backlog=backlog,
        lifecycle=lifecycle,
        nats=nats,
        topology=topology,
        settings=scaling,
        metrics=own,
        clock=clock,
        wall=seconds_since,
        setbacks=Setbacks(Backoff(scaling.retry_first_seconds, scaling.retry_longest_seconds)),
        recorder=recorder,
    )
    controller = _controller(functions, reconciler, settings, metrics)
    reaper = Reaper(nats, topology, records, functions, endings, settings.reaping, own, utcnow)
    lookout = Lookout(backlog, functions, controller.enqueue, scaling.pass_seconds, reconciler.leave)
    functions.units.on_change(lambda change: _forget(change, workers, room, reconciler))
    work = (controller, lookout, reaper)
    ensemble = Ensemble((functions.units,), work, elector, recorder, settings.stop_grace_seconds)
    return Activator(
        nats=nats,
        topology=topology,
        functions=functions,
        workers=workers,
        dispatching=Consumption(publisher, topology.activation, dispatcher.handle, dispatcher.abandon, policy),
        leading=Leading(ensemble, workers, room, functions, lookout, reaper, own, leads),
    )


def _controller(
    functions: Functions, reconciler: FunctionReconciler, settings: ActivatorSettings, metrics: KubeMetrics
) -> Controller[GPUUnit]:
    options = ControllerOptions(
        workers=settings.scaling.at_once, backoff=PATIENT, expected=(KubeError, StreamError, RuntimeFault)
    )
    controller = Controller("function", functions.units, reconciler.reconcile, options, metrics)
    controller.watches(functions.units, functions.concerned)
    return controller


def _forget(change: Change[GPUUnit], workers: Workers, room: Room, reconciler: FunctionReconciler) -> None:
    """A unit that is gone says nothing more, and one that comes under its name is another one."""
    before, after = change.before, change.after
    if before is not None and (after is None or after.metadata.uid != before.metadata.uid):
        workers.leave(before.metadata.key)
        room.leave(before.metadata.key)
        reconciler.forget(before.metadata.key)


def _elector(client: Client, settings: ActivatorSettings, metrics: KubeMetrics) -> Elector | None:
    election = settings.leader_election
    if not election.enabled:
        return None
    timing = Timing(election.lease_seconds, election.renew_deadline_seconds, election.retry_seconds)
    return Elector(client, Key(settings.namespaces.system, NAME), _identity(), timing, metrics)


def _identity() -> str:
    return os.environ.get("POD_NAME") or socket.gethostname()


def _always() -> bool:
    return True


def utcnow() -> datetime:
    return datetime.now(UTC)


def seconds_since(moment: str | None) -> float:
    """Seconds since a moment of the cluster's clock. It is written without fractions."""
    return max(0.0, (utcnow() - datetime.fromisoformat(moment)).total_seconds()) if moment else 0.0
