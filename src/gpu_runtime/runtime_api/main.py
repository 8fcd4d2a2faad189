"""The runtime API: connect, keep the caches true, serve the routes, and end without dropping a request.

It listens at once, so that health answers while Kubernetes is away; it is ready when the caches are complete. NATS may
be away: then invocations are answered with 503, and everything else goes on.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gpu_runtime.contract.crd.operation import OperationType
from gpu_runtime.contract.messages.limits import MAX_TIMEOUT_SECONDS
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.errors import NatsMisconfigured
from gpu_runtime.kube.client import KubeClient, open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff, RetryPolicy
from gpu_runtime.process.health_server import health_handlers, serve_app, serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_from_nats_error, nats_options, stream_topology
from gpu_runtime.runtime_api.api_informers import APIInformers, new_informers
from gpu_runtime.runtime_api.cache_staleness import stale_reason
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.dead_letters import routes as dead_letter_routes
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterService
from gpu_runtime.runtime_api.http import health_route
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.authentication import build_authenticator
from gpu_runtime.runtime_api.http.openapi import openapi_document, serialize_document
from gpu_runtime.runtime_api.http.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from gpu_runtime.runtime_api.invocations import routes as invocation_routes
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.record_store import InvocationRecordStore
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.service import InvocationService
from gpu_runtime.runtime_api.nats_client import NatsClient, cap_request_timeout
from gpu_runtime.runtime_api.operations import jobs
from gpu_runtime.runtime_api.operations.background_queue import BackgroundQueue
from gpu_runtime.runtime_api.operations.jobs import JobService
from gpu_runtime.runtime_api.operations.operation_retention import OperationRetention, OperationRetentionMetrics
from gpu_runtime.runtime_api.operations.operation_store import OperationStore
from gpu_runtime.runtime_api.operations.recovery import OperationRecovery
from gpu_runtime.runtime_api.operations.state_machine import OperationExecutors
from gpu_runtime.runtime_api.settings import RuntimeAPISettings
from gpu_runtime.runtime_api.stock import inventory, pool_routes, stock_units
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStockDeleter
from gpu_runtime.runtime_api.stock.inventory import InventoryService
from gpu_runtime.runtime_api.stock.pools import PoolCreator, PoolService
from gpu_runtime.runtime_api.stock.stock_seeder import StockSeeder
from gpu_runtime.runtime_api.stock.stock_units import StockUnitService
from gpu_runtime.runtime_api.storages import routes as storage_routes
from gpu_runtime.runtime_api.storages.service import StorageService
from gpu_runtime.runtime_api.storages.storage_attacher import StorageAttacher
from gpu_runtime.runtime_api.units import routes as unit_routes
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.service import UnitService
from gpu_runtime.runtime_api.units.stock_selector import StockSelector

NAME = "runtime-api"

KUBE_ATTEMPT_TIMEOUT_FRACTION = 0.1
"""How much of a request's time one attempt at Kubernetes may take: a request has several things to ask there."""
REQUEST_RETRY_POLICY = RetryPolicy(
    max_attempts=2, backoff=Backoff(initial_seconds=0.05, max_seconds=0.2), max_retry_after_seconds=1.0
)
"""A caller waits: a short second try, and then an honest 503 rather than a long silence."""

IDLE_CONNECTION_CLOSE_DELAY_SECONDS = 0.5
"""Seconds between the listener's end and that of idle connections: what was sent on one before that is answered."""

BackgroundTask: TypeAlias = Callable[[], Awaitable[object]]
"""Runs until it is cancelled."""


@dataclass(frozen=True)
class Services:
    """The parts of this process: what the routes answer with, and what runs beside the requests."""

    settings: RuntimeAPISettings
    client: KubeClient
    """With the patience of somebody whose caller waits."""
    informers: APIInformers
    units: UnitService
    storages: StorageService
    pools: PoolService
    stock_units: StockUnitService
    inventory: InventoryService
    jobs: JobService
    nats_client: NatsClient
    invocations: InvocationService
    dead_letters: DeadLetterService
    background_queue: BackgroundQueue
    consumed_deleter: ConsumedStockDeleter
    recovery: OperationRecovery
    retention: OperationRetention

    def stale_reason(self) -> str | None:
        return stale_reason(self.informers, asyncio.get_running_loop().time())


def routes(services: Services) -> Sequence[Route]:
    """Every route. A part of the product adds its list here."""
    return (
        *health_route.routes(
            health_route.KubeProbe(services.client).check, services.stale_reason, services.nats_client.problem
        ),
        *unit_routes.routes(services.units),
        *storage_routes.routes(services.storages),
        *pool_routes.routes(services.pools),
        *stock_units.routes(services.stock_units),
        *inventory.routes(services.inventory),
        *jobs.routes(services.jobs),
        *invocation_routes.routes(services.invocations),
        *dead_letter_routes.routes(services.dead_letters),
    )


def background_tasks(services: Services) -> Sequence[BackgroundTask]:
    """Everything that runs beside the requests. A part of the product adds its tasks here."""
    caches = (cache.run for cache in services.informers.all)
    return (*caches, services.recovery.run, services.retention.run, services.nats_client.run)


async def serve(settings: RuntimeAPISettings, stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    metrics = KubeMetrics(new_registry(NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_cluster_config(kubeconfig, settings.kubernetes.context or None)
    try:
        async with (
            open_kube_client(config, field_manager=NAME, metrics=metrics) as connected,
            connect_nats(cap_request_timeout(nats_options(settings.nats, NAME))) as nats,
        ):
            await _serve(build_services(connected, nats, settings, metrics), metrics, stopping)
    except NatsMisconfigured as error:
        raise fault_from_nats_error(error) from error


def kube_attempt_timeout(settings: RuntimeAPISettings) -> float:
    """Seconds."""
    return min(
        settings.kubernetes.request_timeout_seconds,
        KUBE_ATTEMPT_TIMEOUT_FRACTION * settings.limits.request_timeout_seconds,
    )


def build_services(
    connected: KubeClient, nats: NatsConnection, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> Services:
    client = connected.with_options(kube_attempt_timeout(settings), REQUEST_RETRY_POLICY)
    namespaces, clock = settings.namespaces, SystemClock()
    caches = new_informers(client, namespaces, metrics)
    ledger = OperationStore(client, namespaces.system, clock)
    attachments = StorageAttacher(client, caches)
    consumed = ConsumedStockDeleter(client, caches)
    handoff = Handoff(client, caches, ledger, StockSelector(caches, ledger), attachments, consumed_deleter=consumed)
    pool_making = PoolCreator(client, caches, ledger)
    drivers: OperationExecutors = {
        OperationType.CREATE_UNIT: handoff,
        OperationType.SEED_STOCK: StockSeeder(client, caches, ledger),
        OperationType.CREATE_STOCK_POOL: pool_making,
    }
    workers = BackgroundQueue(drivers)
    messaging = NatsClient(nats, stream_topology(settings.nats))
    invocations = _build_invocations(messaging, caches, settings, metrics)
    return Services(
        settings=settings,
        client=client,
        informers=caches,
        units=UnitService(client, caches, namespaces, handoff, handoff.finish_operation, attachments),
        storages=StorageService(client, caches, namespaces),
        pools=PoolService(client, caches, ledger, namespaces, pool_making, workers.enqueue),
        stock_units=StockUnitService(caches, ledger, namespaces.stock, workers.enqueue),
        inventory=InventoryService(caches, namespaces.stock),
        jobs=JobService(ledger),
        nats_client=messaging,
        invocations=invocations,
        dead_letters=DeadLetterService(messaging, invocations.enqueuer),
        background_queue=workers,
        consumed_deleter=consumed,
        recovery=OperationRecovery(client, caches, ledger, drivers, settings=settings.operations, clock=clock),
        retention=OperationRetention(
            client,
            namespaces.system,
            settings=settings.operations,
            clock=clock,
            metrics=OperationRetentionMetrics(metrics.registry),
        ),
    )


def _build_invocations(
    messaging: NatsClient, caches: APIInformers, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> InvocationService:
    asked, streams, subjects = settings.invocations, settings.nats.streams, messaging.topology.subjects
    clock = SystemClock()
    longest = min(MAX_TIMEOUT_SECONDS, streams.record_retention_seconds)
    return InvocationService(
        nats_client=messaging,
        functions=FunctionLookup(caches.units, settings.namespaces),
        enqueuer=InvocationEnqueuer(
            InvocationRecordStore(messaging.record_bucket), messaging.publisher, subjects, clock
        ),
        results=ResultClient(messaging.connection, subjects, asked.result_query_timeout_seconds),
        limits=InvocationLimits(min(asked.default_timeout_seconds, longest), longest, streams.max_payload_bytes),
        max_sync_wait_seconds=min(asked.max_sync_wait_seconds, 0.9 * settings.limits.request_timeout_seconds),
        clock=clock,
        metrics=InvocationMetrics(metrics.registry),
    )


async def _serve(services: Services, metrics: KubeMetrics, stopping: asyncio.Event) -> None:
    settings, limits = services.settings, services.settings.limits
    who, keeping_up = build_authenticator(settings.authentication, services.client)
    rates = CallerRateLimiter(limits.requests_per_second, limits.burst)
    edge = Edge(who, rates, AccessLog(metrics.registry), limits, services.stale_reason, stopping)
    ready = {"caches": lambda: None if services.informers.has_synced else "the caches are not complete yet"}
    served = routes(services)
    beside = health_handlers(metrics.registry, stopping, ready) | swagger_handlers(
        serialize_document(openapi_document(served))
    )
    app = make_app(served, edge, beside)
    async with (
        serve_health(settings.health, metrics.registry, stopping, ready),
        asyncio.TaskGroup() as tasks,
    ):
        running = [tasks.create_task(_run_forever(work)) for work in (*background_tasks(services), *keeping_up)]
        closed = asyncio.Event()
        for afterwards in (services.background_queue, services.consumed_deleter):
            tasks.create_task(afterwards.run(closed, _connection_shutdown_timeout(settings)))
        async with serve_app(
            app,
            settings.api,
            shutdown_timeout=_connection_shutdown_timeout(settings),
            connection_close_delay=IDLE_CONNECTION_CLOSE_DELAY_SECONDS,
        ):
            await stopping.wait()
            await asyncio.sleep(limits.shutdown_delay_seconds)
        closed.set()
        for task in running:
            task.cancel()


async def _run_forever(work: BackgroundTask) -> None:
    await work()


def _connection_shutdown_timeout(settings: RuntimeAPISettings) -> float:
    """What is left of the grace when connections close, with a second for the end of everything else."""
    return max(
        0.0,
        settings.graceful_shutdown_timeout_seconds
        - settings.limits.shutdown_delay_seconds
        - IDLE_CONNECTION_CLOSE_DELAY_SECONDS
        - 1,
    )
