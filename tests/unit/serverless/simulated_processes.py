"""The processes of the serverless plane on an in-memory NATS server: real code, with a fake framework and database."""

import asyncio
import random
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import datetime
from types import SimpleNamespace
from typing import Any, cast

from nats.aio.msg import Msg
from prometheus_client import CollectorRegistry

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.function_lister import FunctionLister
from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.settings import DispatchSettings, ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring, worker_message_id
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import CANCEL
from gpu_runtime.contract.messages.worker_event import WorkerEvent, WorkerEventKind
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import DirectWorkerRecords, InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import ResultPublisher, new_termination_publisher
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.result_repository.repository import InsertOutcome, ResultRow
from gpu_runtime.result_store.batch_writer import BatchWriter
from gpu_runtime.result_store.metrics import ResultStoreMetrics
from gpu_runtime.result_store.query_handler import result_from_row
from gpu_runtime.result_store.result_consumer import ResultConsumer
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.nats_client import NatsClient
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchHandler, DispatchHandlerOptions
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_connections import ResponseSlot
from gpu_runtime.worker_sidecar.framework_health import FrameworkHealthMonitor
from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    FrameworkFailureKind,
    FrameworkOutcome,
    HandlerFailed,
    HandlerSucceeded,
    TimedOut,
)
from gpu_runtime.worker_sidecar.heartbeat import HeartbeatPublisher
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import ServedFunction
from tests.ticket_keys import TICKETS
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats, NoFaults

TOPOLOGY = StreamTopology(
    limits=StreamLimits(invoke_ack_wait_seconds=3, dispatch_ack_wait_seconds=3, result_ack_wait_seconds=3)
)

REAPER_SETTINGS = ReaperSettings()
MAX_ATTEMPTS = 5
RETRY_BACKOFF = Backoff(initial_seconds=0.2, max_seconds=5.0)


class InMemoryResults:
    """The database of the result store. The first result of an invocation is final.

    The result of a later invocation with the same ID replaces it.
    """

    def __init__(self) -> None:
        self.rows: dict[str, ResultRow] = {}

    async def insert(self, rows: Sequence[ResultRow], _now: datetime) -> list[InsertOutcome]:
        await asyncio.sleep(0)
        return [self._insert(each) for each in rows]

    def _insert(self, row: ResultRow) -> InsertOutcome:
        stored = self.rows.setdefault(row.invocation_id, row)
        if stored.accepted_at < row.accepted_at:
            stored = self.rows[row.invocation_id] = row
        return InsertOutcome(stored.state, inserted=stored is row)

    def result(self, invocation_id: str) -> Result | None:
        row = self.rows.get(invocation_id)
        return result_from_row(row) if row else None


class SimulatedFunctions:
    """The functions that exist, as the API and the activators look them up."""

    def __init__(self, request_ids: set[str]) -> None:
        self.existing = request_ids

    async def wait_for_sync(self) -> None:
        return None

    def by_id(self, function_id: str) -> object | None:
        return object() if function_id in self.ids() else None

    def ids(self) -> set[str]:
        return {simulated_function_id(each) for each in self.existing}

    def cache_is_fresh(self) -> bool:
        return True

    async def confirm_not_found(self, function_id: str) -> bool:
        await asyncio.sleep(0.001)
        return function_id not in self.ids()

    async def resolve_id(self, request_id: str) -> str:
        if request_id not in self.existing:
            raise LookupError(request_id)
        return simulated_function_id(request_id)


def simulated_function_id(request_id: str) -> str:
    return f"id-of-{request_id}"


class UnlimitedCapacity:
    """Queues that always have capacity."""

    async def require(self, _invocation: Invocation) -> None:
        return


@dataclass
class SimulatedFramework:
    """Runs functions for a random time. Some calls fail, or lose their connection."""

    rng: random.Random
    durations: Sequence[float] = (0.0, 0.05, 0.5, 3.0, 8.0)
    failure_rate: float = 0.1
    crash_rate: float = 0.5
    """The part of the failed calls that lose their connection. The others return an error."""
    now: Callable[[], datetime] = field(init=False)
    """The clock of the plane that the framework belongs to."""

    def response_slot(self) -> AbstractContextManager[ResponseSlot]:
        return nullcontext(ResponseSlot(asyncio.Semaphore()))

    async def invoke(self, dispatch: Dispatch, _slot: ResponseSlot, _attempt: int) -> FrameworkOutcome:
        loop = asyncio.get_running_loop()
        until_deadline = (dispatch.deadline - self.now()).total_seconds()
        duration = self.rng.choice(self.durations)
        if duration >= until_deadline:
            await asyncio.sleep(max(0.0, until_deadline) + self.rng.choice((0.0, 0.4)))
            return TimedOut("the function did not return before the deadline")
        await asyncio.sleep(duration)
        if self.rng.random() > self.failure_rate:
            body = b"[%s,%f]" % (dispatch.invocation.body, loop.time())
            return HandlerSucceeded(200, "application/json", body)
        if self.rng.random() >= self.crash_rate:
            return HandlerFailed("ValueError", "bad input", 500)
        return FrameworkFailed(FrameworkFailureKind.CONNECTION_LOST, "connection lost")


@dataclass
class SimulatedProcess:
    """A process: a connection and tasks. A killed process executes nothing more."""

    connection: InMemoryConnection
    tasks: list[asyncio.Task[Any]] = field(default_factory=list)

    @property
    def nats(self) -> NatsConnection:
        return cast(NatsConnection, self.connection)

    def spawn(self, work: Coroutine[Any, Any, Any]) -> asyncio.Task[Any]:
        task = asyncio.create_task(work)
        self.tasks.append(task)
        return task

    def kill(self) -> None:
        if not self.connection.dead:
            self.connection.kill()
        for task in self.tasks:
            task.cancel()


@dataclass
class ServerlessPlane:
    """Builds processes that share a NATS server, a set of functions, a framework and a result database."""

    server: InMemoryNats
    network: NoFaults
    functions: SimulatedFunctions
    framework: SimulatedFramework
    results: InMemoryResults = field(default_factory=InMemoryResults)
    max_attempts: int = MAX_ATTEMPTS
    new_keyring: Callable[[], TicketKeyring] = lambda: TICKETS
    """Returns the ticket keys of a process that starts."""

    def __post_init__(self) -> None:
        self.framework.now = self.now

    async def create_streams(self) -> None:
        admin = cast(NatsConnection, InMemoryConnection(self.server, "admin"))
        await ensure_with_retry(admin, TOPOLOGY.streams, [TOPOLOGY.record_bucket], tuple(TOPOLOGY.shared_consumers()))

    def now(self) -> datetime:
        return self.server.now()

    def monotonic(self) -> float:
        return asyncio.get_running_loop().time()

    async def sleep(self, seconds: float) -> None:
        await asyncio.sleep(seconds)

    def _process(self, name: str) -> SimulatedProcess:
        return SimulatedProcess(InMemoryConnection(self.server, name, self.network))

    def _records(self, process: SimulatedProcess, publisher: Publisher) -> InvocationRecordStore:
        return InvocationRecordStore(KeyValueBucket(process.nats, publisher, TOPOLOGY.record_bucket))

    def start_api(self, name: str) -> tuple[SimulatedProcess, InvocationService]:
        process, tickets = self._process(name), self.new_keyring()
        nats_client = NatsClient(process.nats, TOPOLOGY, tickets)
        process.spawn(nats_client.run())
        enqueuer = InvocationEnqueuer(
            InvocationRecordStore(nats_client.record_bucket),
            nats_client.publisher,
            TOPOLOGY.subjects,
            self,
            tickets,
            UnlimitedCapacity(),
        )
        service = InvocationService(
            nats_client=nats_client,
            functions=cast(FunctionLookup, self.functions),
            enqueuer=enqueuer,
            results=cast(ResultClient, SimulatedResultClient(self.results, process.connection)),
            limits=InvocationLimits(),
            max_sync_wait_seconds=30,
            clock=self,
            metrics=InvocationMetrics(CollectorRegistry()),
        )
        return process, service

    def start_activator(self, name: str, *, leads: bool, max_deliveries: int = 50) -> SimulatedProcess:
        process, tickets = self._process(name), self.new_keyring()
        publisher, metrics = Publisher(process.nats), ActivatorMetrics(CollectorRegistry())
        records, functions = self._records(process, publisher), cast(FunctionLister, self.functions)
        queued, dispatched = (
            TerminalResultPublisher(new_termination_publisher(TOPOLOGY.subjects, publisher, tickets), metrics, stage)
            for stage in (TerminationStage.QUEUED, TerminationStage.DISPATCHED)
        )
        capacity, ignored = FunctionCapacity(self.monotonic), IgnoredMessages(metrics.ignored_messages)
        dispatcher = Dispatcher(
            topology=TOPOLOGY,
            publisher=publisher,
            records=records,
            functions=functions,
            capacity=capacity,
            demand=DemandPublisher(process.nats, TOPOLOGY.subjects, self.monotonic),
            terminal_results=queued,
            settings=DispatchSettings(),
            metrics=metrics,
            clock=self.now,
            tickets=tickets,
            ignored=ignored,
        )
        consumer = PullConsumer(
            process.nats,
            TOPOLOGY.invoke_consumer,
            dispatcher.handle,
            dispatcher.on_dead_letter,
            ConsumeOptions(max_in_flight=8, max_deliveries=max_deliveries, backoff=RETRY_BACKOFF),
        )
        process.spawn(consumer.run(asyncio.Event()))
        process.spawn(self._report_capacity(capacity))
        if leads:
            reaper = InvocationReaper(
                nats=process.nats,
                topology=TOPOLOGY,
                records=records,
                functions=functions,
                terminal_results=dispatched,
                settings=REAPER_SETTINGS,
                metrics=metrics,
                clock=self.now,
                tickets=tickets,
                ignored=ignored,
            )
            process.spawn(reaper.run())
            process.spawn(_subscribe(process, TOPOLOGY.subjects.all_functions(CANCEL), reaper.cancel))
        return process

    async def _report_capacity(self, capacity: FunctionCapacity) -> None:
        """Report free workers from time to time, so that the dispatcher uses its fast path for some invocations."""
        while True:
            await asyncio.sleep(self.framework.rng.uniform(0.1, 2))
            for function_id in sorted(self.functions.ids()):
                capacity.observe(
                    WorkerEvent(
                        kind=WorkerEventKind.HEARTBEAT,
                        function_id=function_id,
                        unit="worker",
                        namespace="n",
                        in_flight=self.framework.rng.randint(0, 1),
                    )
                )

    def start_worker(self, name: str, request_id: str) -> SimulatedProcess:
        process = self._process(name)
        function = ServedFunction(simulated_function_id(request_id), request_id)
        publisher = Publisher(process.nats)
        records = DirectWorkerRecords(self._records(process, publisher), name)
        cancellations = CancellationRegistry(records)
        health: Any = SimpleNamespace(check=_healthy)
        heartbeat: Any = SimpleNamespace(invocation_started=lambda _: None, invocation_finished=lambda _: None)
        handler = DispatchHandler(
            ResultPublisher(TOPOLOGY.subjects, publisher, worker_message_id),
            records,
            cast(FrameworkClient, self.framework),
            cast(FrameworkHealthMonitor, health),
            cast(HeartbeatPublisher, heartbeat),
            cancellations,
            SidecarMetrics(CollectorRegistry()),
            DispatchHandlerOptions(
                function, name, TOPOLOGY.subjects, self.max_attempts, RETRY_BACKOFF, 1000, clock=self.now
            ),
        )
        consumer = PullConsumer(
            process.nats,
            TOPOLOGY.dispatch_consumer(function.function_id),
            handler.handle,
            handler.on_dead_letter,
            ConsumeOptions(max_in_flight=2, max_deliveries=None, backoff=RETRY_BACKOFF),
        )
        process.spawn(consumer.run(asyncio.Event()))
        process.spawn(_subscribe(process, TOPOLOGY.subjects.cancel(function.function_id), cancellations.on_cancel))
        process.spawn(cancellations.run())
        return process

    def start_result_store(self, name: str) -> SimulatedProcess:
        process, metrics = self._process(name), ResultStoreMetrics(CollectorRegistry())
        publisher, writer = Publisher(process.nats), BatchWriter(cast(Any, self.results), 16, metrics)
        handler = ResultConsumer(
            writer,
            self._records(process, publisher),
            publisher,
            TOPOLOGY.subjects,
            1000,
            metrics,
            self.new_keyring(),
            IgnoredMessages(metrics.ignored_messages),
        )
        consumer = PullConsumer(
            process.nats,
            TOPOLOGY.result_consumer,
            handler.handle,
            handler.on_dead_letter,
            ConsumeOptions(max_in_flight=4, max_deliveries=None, backoff=RETRY_BACKOFF),
        )
        process.spawn(writer.run(asyncio.Event()))
        process.spawn(consumer.run(asyncio.Event()))
        return process


@dataclass
class SimulatedResultClient:
    """Reads results from the database, after the latency of a query."""

    results: InMemoryResults
    connection: InMemoryConnection

    async def find(self, invocation_id: str) -> Result | None:
        await asyncio.sleep(self.connection.network.latency(self.connection))
        return self.results.result(invocation_id)


async def _subscribe(process: SimulatedProcess, subject: str, cancel: Any) -> None:
    def on_cancel(message: Msg) -> None:
        cancel(message.data.decode())

    await process.connection.subscribe(subject, on_cancel)


async def _healthy() -> None:
    return None
