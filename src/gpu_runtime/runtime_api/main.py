"""The process of the runtime API: connects to Kubernetes and NATS, serves the routes and shuts down gracefully.

The process listens immediately, so that it can answer health requests while Kubernetes is unreachable. It is ready when
the informer caches are complete. While NATS is unreachable, it answers requests for invocations and dead letters with
503, and all other requests work. On SIGTERM, it answers the requests in flight before it exits.
"""

import asyncio
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.crd.operation import OperationType
from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.contract.messages.limits import MAX_TIMEOUT_SECONDS
from gpu_runtime.contract.timing import kube_attempt_timeout, sync_wait_limit
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.kube.cache_staleness import CacheStaleness
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import RetryPolicy
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import SystemClock
from gpu_runtime.process.connection_table import ConnectionLimits
from gpu_runtime.process.health_server import HealthCheck, health_handlers, serve_app, serve_health
from gpu_runtime.process.kubernetes import connect_kubernetes
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import connect_nats_or_fault, nats_options, stream_topology
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.process.runner import run_process
from gpu_runtime.process.ticket_key_file import TicketKeyFile
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.dead_letters.routes import DEAD_LETTERS
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.authentication import build_authenticator
from gpu_runtime.runtime_api.http.byte_budget import ByteBudget
from gpu_runtime.runtime_api.http.health_route import HEALTH, HealthService, KubeProbe
from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.queue_shares import QueueShares
from gpu_runtime.runtime_api.invocations.record_shares import RecordShares
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.routes import INVOCATIONS
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.jobs.routes import JOBS, JobService
from gpu_runtime.runtime_api.nats_client import NatsClient, cap_request_timeout
from gpu_runtime.runtime_api.operations.drive import OperationDriver, OperationExecutor, OperationRunner
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetention, OperationRetentionMetrics
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.operations.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.settings import RuntimeAPISettings
from gpu_runtime.runtime_api.stock.inventory import INVENTORY, InventoryService
from gpu_runtime.runtime_api.stock.pool_routes import POOLS
from gpu_runtime.runtime_api.stock.pools import PoolCreator, PoolService
from gpu_runtime.runtime_api.stock.stock_returns import STOCK_RETURNS, StockReturnService
from gpu_runtime.runtime_api.stock.stock_seeder import StockSeeder
from gpu_runtime.runtime_api.stock.stock_units import STOCK_UNITS, StockUnitService
from gpu_runtime.runtime_api.storages.routes import STORAGES
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.units.caller_semaphore import CallerSemaphore
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.metrics import CreateMetrics, StockMetrics
from gpu_runtime.runtime_api.units.routes import UNITS
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.stock_selector import StockSelector
from gpu_runtime.runtime_api.units.waiting_limit import WaitingLimit
from gpu_runtime.runtime_api.units.worker_routes import WORKERS

PROCESS_NAME = "runtime-api"

REQUEST_RETRY_POLICY = RetryPolicy(
    max_attempts=2, backoff=Backoff(initial_seconds=0.05, max_seconds=0.2), max_retry_after_seconds=1.0
)
"""The policy has only two attempts and short delays, because the HTTP caller is waiting."""

IDLE_CONNECTION_CLOSE_DELAY_SECONDS = 0.5
"""The delay between closing the listener and closing idle connections.

The server still answers a request that a client sends on an idle connection during this delay.
"""

BackgroundTask: TypeAlias = Callable[[], Coroutine[Any, Any, object]]
"""A coroutine function that runs until it is cancelled."""


@dataclass(frozen=True)
class Services:
    """The services behind the routes, and the background tasks of the process."""

    settings: RuntimeAPISettings
    client: KubeClient
    """The client for requests whose HTTP caller is waiting. It has a short timeout and few attempts."""
    informers: APIInformers
    staleness: CacheStaleness
    units: UnitService
    storages: StorageService
    pools: PoolService
    stock_units: StockUnitService
    stock_returns: StockReturnService
    inventory: InventoryService
    jobs: JobService
    nats_client: NatsClient
    invocations: InvocationService
    dead_letters: DeadLetterService
    background_queues: Sequence[BackgroundQueue]
    recovery: OperationRecovery
    retention: OperationRetention


def routes(services: Services) -> Sequence[Route]:
    """Return all routes of the API. `openapi_routes.ROUTE_GROUPS` lists the same groups without services."""
    probe = KubeProbe(services.client)
    health = HealthService(probe.check, services.staleness.reason, services.nats_client.problem)
    return (
        *HEALTH.bind(health),
        *UNITS.bind(services.units),
        *WORKERS.bind(services.units),
        *STORAGES.bind(services.storages),
        *POOLS.bind(services.pools),
        *STOCK_UNITS.bind(services.stock_units),
        *STOCK_RETURNS.bind(services.stock_returns),
        *INVENTORY.bind(services.inventory),
        *JOBS.bind(services.jobs),
        *INVOCATIONS.bind(services.invocations),
        *DEAD_LETTERS.bind(services.dead_letters),
    )


def background_tasks(services: Services) -> Sequence[BackgroundTask]:
    """Return all tasks that run in the background. Each package adds its tasks here."""
    informers = (informer.run for informer in services.informers.all)
    return (*informers, services.recovery.run, services.retention.run, services.nats_client.run)


def main(config: Path) -> int:
    return run_process(config, RuntimeAPISettings, run_runtime_api)


async def run_runtime_api(settings: RuntimeAPISettings, stopping: asyncio.Event) -> None:
    """Serve until `stopping` is set."""
    metrics, key_file = KubeMetrics(new_registry(PROCESS_NAME)), TicketKeyFile(settings.tickets)
    async with (
        connect_kubernetes(settings.kubernetes, PROCESS_NAME, metrics) as client,
        connect_nats_or_fault(cap_request_timeout(nats_options(settings.nats, PROCESS_NAME))) as nats,
    ):
        services = build_services(client, nats, settings, metrics, key_file.keyring)
        await _serve(services, key_file, metrics, stopping)


def build_services(
    connected: KubeClient,
    nats: NatsConnection,
    settings: RuntimeAPISettings,
    metrics: KubeMetrics,
    tickets: TicketKeyring,
) -> Services:
    timeout = kube_attempt_timeout(settings.kubernetes.request_timeout_seconds, settings.limits.request_timeout_seconds)
    client = connected.with_options(timeout, REQUEST_RETRY_POLICY)
    namespaces, clock = settings.namespaces, SystemClock()
    informers = new_informers(client, namespaces, metrics)
    staleness = CacheStaleness(informers.required)
    driver = OperationDriver(OperationStore(client, namespaces.system, clock), clock)
    attacher, stock_deletions = StorageAttacher(client, informers), BackgroundQueue()
    selector = StockSelector(informers, driver.store)
    stock_metrics = StockMetrics(metrics.registry)
    create_metrics = CreateMetrics(metrics.registry)
    handoff = Handoff(
        client,
        informers,
        driver,
        selector,
        attacher,
        deletions=stock_deletions,
        metrics=stock_metrics,
        semaphore=CallerSemaphore(settings.limits.max_queued_creates_per_caller, create_metrics),
        waiting_limit=WaitingLimit(settings.operations.max_waiting_per_caller, create_metrics),
    )
    executors: Mapping[OperationType, OperationExecutor] = {
        OperationType.CREATE_UNIT: handoff,
        OperationType.SEED_STOCK: StockSeeder(client, informers, driver),
        OperationType.CREATE_STOCK_POOL: PoolCreator(client, informers, driver),
    }
    operations = OperationRunner(driver.store, executors, BackgroundQueue())
    nats_client = NatsClient(nats, stream_topology(settings.nats), tickets)
    invocations = _build_invocations(nats_client, informers, settings, metrics)
    return Services(
        settings=settings,
        client=client,
        informers=informers,
        staleness=staleness,
        units=UnitService(client, informers, namespaces, handoff, operations, attacher, settings.pods.policy),
        storages=StorageService(client, informers, namespaces),
        pools=PoolService(client, informers, operations, namespaces, settings.pods.policy),
        stock_units=StockUnitService(client, informers, operations, namespaces.stock),
        stock_returns=StockReturnService(client, informers, operations, namespaces.stock),
        inventory=InventoryService(informers, namespaces.stock),
        jobs=JobService(driver.store),
        nats_client=nats_client,
        invocations=invocations,
        dead_letters=DeadLetterService(
            nats_client, invocations.enqueuer, invocations.functions, invocations.message_reads
        ),
        background_queues=(operations.queue, stock_deletions),
        recovery=OperationRecovery(client, informers, operations, settings=settings.operations, clock=clock),
        retention=OperationRetention(
            client=client,
            informers=informers,
            stale_reason=staleness.reason,
            namespace=namespaces.system,
            settings=settings.operations,
            clock=clock,
            metrics=OperationRetentionMetrics(metrics.registry),
        ),
    )


def _build_invocations(
    nats_client: NatsClient, informers: APIInformers, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> InvocationService:
    own, streams, subjects = settings.invocations, settings.nats.streams, nats_client.topology.subjects
    clock, invocation_metrics = SystemClock(), InvocationMetrics(metrics.registry)
    max_timeout = min(MAX_TIMEOUT_SECONDS, streams.record_retention_seconds)
    return InvocationService(
        nats_client=nats_client,
        functions=FunctionLookup(informers.units, informers.queues, settings.namespaces),
        enqueuer=InvocationEnqueuer(
            InvocationRecordStore(nats_client.record_bucket),
            nats_client.publisher,
            subjects,
            clock,
            nats_client.tickets,
            _build_queue_shares(nats_client, invocation_metrics, clock),
        ),
        results=ResultClient(nats_client.connection, subjects, own.result_query_timeout_seconds),
        limits=InvocationLimits(min(own.default_timeout_seconds, max_timeout), max_timeout, streams.max_payload_bytes),
        max_sync_wait_seconds=sync_wait_limit(own.max_sync_wait_seconds, settings.limits.request_timeout_seconds),
        clock=clock,
        metrics=invocation_metrics,
    )


def _build_queue_shares(nats_client: NatsClient, metrics: InvocationMetrics, clock: SystemClock) -> QueueShares:
    connection, topology = nats_client.connection, nats_client.topology
    records = RecordShares(connection, topology, metrics, clock)
    return QueueShares(connection, topology, metrics, clock, records)


async def _serve(services: Services, key_file: TicketKeyFile, metrics: KubeMetrics, stopping: asyncio.Event) -> None:
    settings, limits = services.settings, services.settings.limits
    authenticator, authenticator_tasks, token_file_problem = build_authenticator(
        settings.authentication, services.client, metrics.registry
    )
    rate_limiter = CallerRateLimiter(limits.requests_per_second, limits.burst)
    edge = Edge(
        authenticator,
        rate_limiter,
        CallerRateLimiter(limits.anonymous_requests_per_second, limits.burst),
        ByteBudget(limits.max_bytes_in_flight),
        AccessLog(metrics.registry),
        limits,
        services.staleness.reason,
        stopping,
    )
    readiness: dict[str, HealthCheck] = {
        "caches": lambda: None if services.informers.has_synced else "the caches are not complete yet",
        "token-file": token_file_problem,
    }
    api_routes = routes(services)
    plain_handlers = health_handlers(stopping, readiness) | swagger_handlers(
        serialize_document(openapi_document(api_routes))
    )
    app = make_app(api_routes, edge, plain_handlers)
    async with (
        serve_health(settings.health, metrics.registry, stopping, readiness),
        asyncio.TaskGroup() as tasks,
    ):
        tasks.create_task(key_file.watch(stopping))
        background = [tasks.create_task(task()) for task in (*background_tasks(services), *authenticator_tasks)]
        # These queues stop after the HTTP server, because requests in flight still add work to them.
        server_closed = asyncio.Event()
        for queue in services.background_queues:
            tasks.create_task(queue.run(server_closed, _connection_shutdown_timeout(settings)))
        async with serve_app(
            app,
            settings.api,
            shutdown_timeout=_connection_shutdown_timeout(settings),
            connection_close_delay=IDLE_CONNECTION_CLOSE_DELAY_SECONDS,
            connection_limits=ConnectionLimits(limits.max_connections, limits.max_connections_per_peer),
        ):
            await stopping.wait()
            await asyncio.sleep(limits.shutdown_delay_seconds)
        server_closed.set()
        for task in background:
            task.cancel()


def _connection_shutdown_timeout(settings: RuntimeAPISettings) -> float:
    """Return the part of the graceful shutdown timeout that remains when the connections close, in seconds.

    One second is reserved for the rest of the shutdown.
    """
    return max(
        0.0,
        settings.graceful_shutdown_timeout_seconds
        - settings.limits.shutdown_delay_seconds
        - IDLE_CONNECTION_CLOSE_DELAY_SECONDS
        - 1,
    )
