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
from gpu_runtime.contract.messages.limits import TIMEOUT_LIMIT
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.errors import Misconfigured
from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff, RetryPolicy
from gpu_runtime.process.health_server import endpoint_handlers, listening, serve_endpoints
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.nats_setup import fault_of, options_of, topology_of
from gpu_runtime.runtime_api.api_informers import Caches, open_caches
from gpu_runtime.runtime_api.cache_staleness import unusable
from gpu_runtime.runtime_api.clock import SystemClock
from gpu_runtime.runtime_api.dead_letters import routes as dead_letter_routes
from gpu_runtime.runtime_api.dead_letters.service import DeadLetterOffice
from gpu_runtime.runtime_api.http import health_route
from gpu_runtime.runtime_api.http.access_log import Journal
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.authentication import authenticator
from gpu_runtime.runtime_api.http.openapi import document, written
from gpu_runtime.runtime_api.http.rate_limit import Rates
from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from gpu_runtime.runtime_api.invocations import routes as invocation_routes
from gpu_runtime.runtime_api.invocations.enqueue import Ingress
from gpu_runtime.runtime_api.invocations.function_lookup import Functions
from gpu_runtime.runtime_api.invocations.invocation_admission import Terms
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.record_store import Records
from gpu_runtime.runtime_api.invocations.result_client import Results
from gpu_runtime.runtime_api.invocations.service import Invocations
from gpu_runtime.runtime_api.nats_client import Messaging, impatient
from gpu_runtime.runtime_api.operations import jobs
from gpu_runtime.runtime_api.operations.background_queue import Workers
from gpu_runtime.runtime_api.operations.jobs import Jobs
from gpu_runtime.runtime_api.operations.operation_retention import Retention, RetentionMetrics
from gpu_runtime.runtime_api.operations.operation_store import Ledger
from gpu_runtime.runtime_api.operations.recovery import Sweep
from gpu_runtime.runtime_api.operations.state_machine import Drivers
from gpu_runtime.runtime_api.settings import RuntimeAPISettings
from gpu_runtime.runtime_api.stock import inventory, pool_routes, stock_units
from gpu_runtime.runtime_api.stock.consumed_deleter import ConsumedStock
from gpu_runtime.runtime_api.stock.inventory import Inventory
from gpu_runtime.runtime_api.stock.pools import PoolMaking, Pools
from gpu_runtime.runtime_api.stock.stock_seeder import Seeding
from gpu_runtime.runtime_api.stock.stock_units import StockUnits
from gpu_runtime.runtime_api.storages import routes as storage_routes
from gpu_runtime.runtime_api.storages.service import Storages
from gpu_runtime.runtime_api.storages.storage_attacher import Attachments
from gpu_runtime.runtime_api.units import routes as unit_routes
from gpu_runtime.runtime_api.units.handoff import Handoff
from gpu_runtime.runtime_api.units.service import Units
from gpu_runtime.runtime_api.units.stock_selector import Shelf

NAME = "runtime-api"

PART_OF_A_REQUEST = 0.1
"""How much of a request's time one attempt at Kubernetes may take: a request has several things to ask there."""
IN_A_REQUEST = RetryPolicy(attempts=2, backoff=Backoff(first=0.05, longest=0.2), patience=1.0)
"""A caller waits: a short second try, and then an honest 503 rather than a long silence."""

LINGER = 0.5
"""Seconds between the listener's end and that of idle connections: what was sent on one before that is answered."""

Background: TypeAlias = Callable[[], Awaitable[object]]
"""Runs until it is cancelled."""


@dataclass(frozen=True)
class Services:
    """The parts of this process: what the routes answer with, and what runs beside the requests."""

    settings: RuntimeAPISettings
    client: Client
    """With the patience of somebody whose caller waits."""
    caches: Caches
    units: Units
    storages: Storages
    pools: Pools
    stock_units: StockUnits
    inventory: Inventory
    jobs: Jobs
    messaging: Messaging
    invocations: Invocations
    dead_letters: DeadLetterOffice
    workers: Workers
    consumed: ConsumedStock
    sweep: Sweep
    retention: Retention

    def unusable(self) -> str | None:
        return unusable(self.caches, asyncio.get_running_loop().time())


def routes(services: Services) -> Sequence[Route]:
    """Every route. A part of the product adds its list here."""
    return (
        *health_route.routes(health_route.Pulse(services.client).feel, services.unusable, services.messaging.problem),
        *unit_routes.routes(services.units),
        *storage_routes.routes(services.storages),
        *pool_routes.routes(services.pools),
        *stock_units.routes(services.stock_units),
        *inventory.routes(services.inventory),
        *jobs.routes(services.jobs),
        *invocation_routes.routes(services.invocations),
        *dead_letter_routes.routes(services.dead_letters),
    )


def background(services: Services) -> Sequence[Background]:
    """Everything that runs beside the requests. A part of the product adds its tasks here."""
    caches = (cache.run for cache in services.caches.all)
    return (*caches, services.sweep.run, services.retention.run, services.messaging.run)


async def serve(settings: RuntimeAPISettings, stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    metrics = KubeMetrics(new_registry(NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_config(kubeconfig, settings.kubernetes.context or None)
    try:
        async with (
            connect(config, field_manager=NAME, metrics=metrics) as connected,
            connection(impatient(options_of(settings.nats, NAME))) as nats,
        ):
            await _serve(build(connected, nats, settings, metrics), metrics, stopping)
    except Misconfigured as error:
        raise fault_of(error) from error


def longest_attempt(settings: RuntimeAPISettings) -> float:
    """Seconds."""
    return min(settings.kubernetes.request_timeout_seconds, PART_OF_A_REQUEST * settings.limits.request_seconds)


def build(connected: Client, nats: Connection, settings: RuntimeAPISettings, metrics: KubeMetrics) -> Services:
    client = connected.patient(longest_attempt(settings), IN_A_REQUEST)
    namespaces, clock = settings.namespaces, SystemClock()
    caches = open_caches(client, namespaces, metrics)
    ledger = Ledger(client, namespaces.system, clock)
    attachments = Attachments(client, caches)
    consumed = ConsumedStock(client, caches)
    handoff = Handoff(client, caches, ledger, Shelf(caches, ledger), attachments, consumed=consumed)
    pool_making = PoolMaking(client, caches, ledger)
    drivers: Drivers = {
        OperationType.CREATE_UNIT: handoff,
        OperationType.SEED_STOCK: Seeding(client, caches, ledger),
        OperationType.CREATE_STOCK_POOL: pool_making,
    }
    workers = Workers(drivers)
    messaging = Messaging(nats, topology_of(settings.nats))
    invocations = _invocations(messaging, caches, settings, metrics)
    return Services(
        settings=settings,
        client=client,
        caches=caches,
        units=Units(client, caches, namespaces, handoff, handoff.settle, attachments),
        storages=Storages(client, caches, namespaces),
        pools=Pools(client, caches, ledger, namespaces, pool_making, workers.begin),
        stock_units=StockUnits(caches, ledger, namespaces.stock, workers.begin),
        inventory=Inventory(caches, namespaces.stock),
        jobs=Jobs(ledger),
        messaging=messaging,
        invocations=invocations,
        dead_letters=DeadLetterOffice(messaging, invocations.ingress),
        workers=workers,
        consumed=consumed,
        sweep=Sweep(client, caches, ledger, drivers, settings=settings.operations, clock=clock),
        retention=Retention(
            client,
            namespaces.system,
            settings=settings.operations,
            clock=clock,
            metrics=RetentionMetrics(metrics.registry),
        ),
    )


def _invocations(
    messaging: Messaging, caches: Caches, settings: RuntimeAPISettings, metrics: KubeMetrics
) -> Invocations:
    asked, streams, subjects = settings.invocations, settings.nats.streams, messaging.topology.subjects
    clock = SystemClock()
    longest = min(TIMEOUT_LIMIT, streams.state_retention_seconds)
    return Invocations(
        messaging=messaging,
        functions=Functions(caches.units, settings.namespaces),
        ingress=Ingress(Records(messaging.state), messaging.publisher, subjects, clock),
        results=Results(messaging.connection, subjects, asked.store_seconds),
        terms=Terms(min(asked.timeout_seconds, longest), longest, streams.body_bytes),
        longest_wait=min(asked.sync_wait_seconds, 0.9 * settings.limits.request_seconds),
        clock=clock,
        metrics=InvocationMetrics(metrics.registry),
    )


async def _serve(services: Services, metrics: KubeMetrics, stopping: asyncio.Event) -> None:
    settings, limits = services.settings, services.settings.limits
    who, keeping_up = authenticator(settings.authentication, services.client)
    rates = Rates(limits.requests_per_second, limits.burst)
    edge = Edge(who, rates, Journal(metrics.registry), limits, services.unusable, stopping)
    ready = {"caches": lambda: None if services.caches.have_synced else "the caches are not complete yet"}
    served = routes(services)
    beside = endpoint_handlers(metrics.registry, stopping, ready) | swagger_handlers(written(document(served)))
    app = make_app(served, edge, beside)
    async with (
        serve_endpoints(settings.endpoints, metrics.registry, stopping, ready),
        asyncio.TaskGroup() as tasks,
    ):
        running = [tasks.create_task(_endless(work)) for work in (*background(services), *keeping_up)]
        closed = asyncio.Event()
        for afterwards in (services.workers, services.consumed):
            tasks.create_task(afterwards.run(closed, _time_to_finish(settings)))
        async with listening(app, settings.api, finish_within=_time_to_finish(settings), linger=LINGER):
            await stopping.wait()
            await asyncio.sleep(limits.drain_seconds)
        closed.set()
        for task in running:
            task.cancel()


async def _endless(work: Background) -> None:
    await work()


def _time_to_finish(settings: RuntimeAPISettings) -> float:
    """What is left of the grace when connections close, with a second for the end of everything else."""
    return max(0.0, settings.stop_grace_seconds - settings.limits.drain_seconds - LINGER - 1)
