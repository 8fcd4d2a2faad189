"""The process of the runtime API: connects to Kubernetes and NATS, serves the routes and shuts down gracefully.

The process listens immediately, so that it can answer health requests while Kubernetes is unreachable. It is ready when
the informer caches are complete. While NATS is unreachable, it answers requests for invocations and dead letters with
503, and all other requests work. On SIGTERM, it answers the requests in flight before it exits.
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
"""The share of the HTTP request timeout that one attempt of a Kubernetes request may use.

The share is small, because one HTTP request needs several Kubernetes requests.
"""
REQUEST_RETRY_POLICY = RetryPolicy(
    max_attempts=2, backoff=Backoff(initial_seconds=0.05, max_seconds=0.2), max_retry_after_seconds=1.0
)
"""The policy has only two attempts and short delays, because the HTTP caller is waiting."""

IDLE_CONNECTION_CLOSE_DELAY_SECONDS = 0.5
"""The delay between closing the listener and closing idle connections.

The server still answers a request that a client sends on an idle connection during this delay.
"""

BackgroundTask: TypeAlias = Callable[[], Awaitable[object]]
"""A coroutine function that runs until it is cancelled."""


@dataclass(frozen=True)
class Services:
    """The services behind the routes, and the background tasks of the process."""

    settings: RuntimeAPISettings
    client: KubeClient
    """The client for requests whose HTTP caller is waiting. It has a short timeout and few attempts."""
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
    """Return all routes of the API. Each package adds its routes here."""
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
    """Return all tasks that run in the background. Each package adds its tasks here."""
    informers = (informer.run for informer in services.informers.all)
    return (*informers, services.recovery.run, services.retention.run, services.nats_client.run)


async def serve(settings: RuntimeAPISettings, stopping: asyncio.Event) -> None:
    """Serve until `stopping` is set."""
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
    """Return the timeout in seconds of one attempt of a Kubernetes request."""
    return min(
        settings.kubernetes.request_timeout_seconds,
        KUBE_ATTEMPT_TIMEOUT_FRACTION * settings.limits.request_timeout_seconds,
    )


def build_services(
    connected: KubeClient, nats: NatsConnection, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> Services:
    client = connected.with_options(kube_attempt_timeout(settings), REQUEST_RETRY_POLICY)
    namespaces, clock = settings.namespaces, SystemClock()
    informers = new_informers(client, namespaces, metrics)
    operation_store = OperationStore(client, namespaces.system, clock)
    attacher = StorageAttacher(client, informers)
    consumed_deleter = ConsumedStockDeleter(client, informers)
    handoff = Handoff(
        client,
        informers,
        operation_store,
        StockSelector(informers, operation_store),
        attacher,
        consumed_deleter=consumed_deleter,
    )
    pool_creator = PoolCreator(client, informers, operation_store)
    executors: OperationExecutors = {
        OperationType.CREATE_UNIT: handoff,
        OperationType.SEED_STOCK: StockSeeder(client, informers, operation_store),
        OperationType.CREATE_STOCK_POOL: pool_creator,
    }
    background_queue = BackgroundQueue(executors)
    nats_client = NatsClient(nats, stream_topology(settings.nats))
    invocations = _build_invocations(nats_client, informers, settings, metrics)
    return Services(
        settings=settings,
        client=client,
        informers=informers,
        units=UnitService(client, informers, namespaces, handoff, handoff.finish_operation, attacher),
        storages=StorageService(client, informers, namespaces),
        pools=PoolService(client, informers, operation_store, namespaces, pool_creator, background_queue.enqueue),
        stock_units=StockUnitService(informers, operation_store, namespaces.stock, background_queue.enqueue),
        inventory=InventoryService(informers, namespaces.stock),
        jobs=JobService(operation_store),
        nats_client=nats_client,
        invocations=invocations,
        dead_letters=DeadLetterService(nats_client, invocations.enqueuer),
        background_queue=background_queue,
        consumed_deleter=consumed_deleter,
        recovery=OperationRecovery(
            client, informers, operation_store, executors, settings=settings.operations, clock=clock
        ),
        retention=OperationRetention(
            client,
            namespaces.system,
            settings=settings.operations,
            clock=clock,
            metrics=OperationRetentionMetrics(metrics.registry),
        ),
    )


def _build_invocations(
    nats_client: NatsClient, informers: APIInformers, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> InvocationService:
    own, streams, subjects = settings.invocations, settings.nats.streams, nats_client.topology.subjects
    clock = SystemClock()
    max_timeout = min(MAX_TIMEOUT_SECONDS, streams.record_retention_seconds)
    return InvocationService(
        nats_client=nats_client,
        functions=FunctionLookup(informers.units, settings.namespaces),
        enqueuer=InvocationEnqueuer(
            InvocationRecordStore(nats_client.record_bucket), nats_client.publisher, subjects, clock
        ),
        results=ResultClient(nats_client.connection, subjects, own.result_query_timeout_seconds),
        limits=InvocationLimits(min(own.default_timeout_seconds, max_timeout), max_timeout, streams.max_payload_bytes),
        max_sync_wait_seconds=min(own.max_sync_wait_seconds, 0.9 * settings.limits.request_timeout_seconds),
        clock=clock,
        metrics=InvocationMetrics(metrics.registry),
    )


async def _serve(services: Services, metrics: KubeMetrics, stopping: asyncio.Event) -> None:
    settings, limits = services.settings, services.settings.limits
    authenticator, authenticator_tasks = build_authenticator(settings.authentication, services.client)
    rate_limiter = CallerRateLimiter(limits.requests_per_second, limits.burst)
    edge = Edge(authenticator, rate_limiter, AccessLog(metrics.registry), limits, services.stale_reason, stopping)
    readiness = {"caches": lambda: None if services.informers.has_synced else "the caches are not complete yet"}
    api_routes = routes(services)
    plain_handlers = health_handlers(metrics.registry, stopping, readiness) | swagger_handlers(
        serialize_document(openapi_document(api_routes))
    )
    app = make_app(api_routes, edge, plain_handlers)
    async with (
        serve_health(settings.health, metrics.registry, stopping, readiness),
        asyncio.TaskGroup() as tasks,
    ):
        background = [
            tasks.create_task(_run_forever(task)) for task in (*background_tasks(services), *authenticator_tasks)
        ]
        # These queues stop after the HTTP server, because requests in flight still add work to them.
        server_closed = asyncio.Event()
        for queue in (services.background_queue, services.consumed_deleter):
            tasks.create_task(queue.run(server_closed, _connection_shutdown_timeout(settings)))
        async with serve_app(
            app,
            settings.api,
            shutdown_timeout=_connection_shutdown_timeout(settings),
            connection_close_delay=IDLE_CONNECTION_CLOSE_DELAY_SECONDS,
        ):
            await stopping.wait()
            await asyncio.sleep(limits.shutdown_delay_seconds)
        server_closed.set()
        for task in background:
            task.cancel()


async def _run_forever(task: BackgroundTask) -> None:
    await task()


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
