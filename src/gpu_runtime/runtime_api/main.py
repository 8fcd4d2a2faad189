"""The runtime API: connect, keep the caches true, serve the routes, and end without dropping a request.

It listens at once, so that health answers while Kubernetes is away; it is ready when the caches are complete.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

from gpu_runtime.kube.client import Client, connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.kube.retry import Backoff, RetryPolicy
from gpu_runtime.process.endpoints import endpoint_handlers, listening, serve_endpoints
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.runtime_api.caches import Caches, open_caches
from gpu_runtime.runtime_api.clock import Clock, SystemClock
from gpu_runtime.runtime_api.freshness import unusable
from gpu_runtime.runtime_api.http import health
from gpu_runtime.runtime_api.http.authentication import authenticator
from gpu_runtime.runtime_api.http.journal import Journal
from gpu_runtime.runtime_api.http.rates import Rates
from gpu_runtime.runtime_api.http.route import Route
from gpu_runtime.runtime_api.http.server import Edge, make_app
from gpu_runtime.runtime_api.operations.ledger import Ledger
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

NAME = "runtime-api"

LONGEST_ATTEMPT = 3.0
IN_A_REQUEST = RetryPolicy(attempts=2, backoff=Backoff(first=0.05, longest=0.2), patience=1.0)
"""A caller waits: a short second try, and then an honest 503 rather than a long silence."""

Background: TypeAlias = Callable[[], Awaitable[object]]
"""Runs until it is cancelled."""


@dataclass(frozen=True)
class Services:
    """What the routes and the background work of this process stand on."""

    settings: RuntimeAPISettings
    client: Client
    """With the patience of somebody whose caller waits."""
    caches: Caches
    ledger: Ledger
    clock: Clock

    def unusable(self) -> str | None:
        return unusable(self.caches, asyncio.get_running_loop().time())


def routes(services: Services) -> Sequence[Route]:
    """Every route. A part of the product adds its list here."""
    return (*health.routes(health.Pulse(services.client).feel, services.unusable),)


def background(services: Services) -> Sequence[Background]:
    """Everything that runs beside the requests. A part of the product adds its tasks here."""
    return tuple(cache.run for cache in services.caches.all)


async def serve(settings: RuntimeAPISettings, stopping: asyncio.Event) -> None:
    """Serve until told to stop."""
    metrics = KubeMetrics(new_registry(NAME))
    kubeconfig = Path(settings.kubernetes.kubeconfig) if settings.kubernetes.kubeconfig else None
    config = load_config(kubeconfig, settings.kubernetes.context or None)
    async with connect(config, field_manager=NAME, metrics=metrics) as connected:
        await _serve(build(connected, settings, metrics), metrics, stopping)


def build(connected: Client, settings: RuntimeAPISettings, metrics: KubeMetrics) -> Services:
    client = connected.patient(min(settings.kubernetes.request_timeout_seconds, LONGEST_ATTEMPT), IN_A_REQUEST)
    caches, clock = open_caches(client, settings.namespaces, metrics), SystemClock()
    return Services(settings, client, caches, Ledger(client, settings.namespaces.system, clock), clock)


async def _serve(services: Services, metrics: KubeMetrics, stopping: asyncio.Event) -> None:
    settings, limits = services.settings, services.settings.limits
    who, keeping_up = authenticator(settings.authentication, services.client)
    rates = Rates(limits.requests_per_second, limits.burst)
    edge = Edge(who, rates, Journal(metrics.registry), limits, services.unusable, stopping)
    ready = {"caches": lambda: None if services.caches.have_synced else "the caches are not complete yet"}
    app = make_app(routes(services), edge, endpoint_handlers(metrics.registry, stopping, ready))
    async with (
        serve_endpoints(settings.endpoints, metrics.registry, stopping, ready),
        asyncio.TaskGroup() as tasks,
    ):
        running = [tasks.create_task(_endless(work)) for work in (*background(services), *keeping_up)]
        async with listening(app, settings.api, finish_within=_time_to_finish(settings)):
            await stopping.wait()
            await asyncio.sleep(limits.drain_seconds)
        for task in running:
            task.cancel()


async def _endless(work: Background) -> None:
    await work()


def _time_to_finish(settings: RuntimeAPISettings) -> float:
    """What is left of the grace when the listener closes, with a second for the end of everything else."""
    return max(0.0, settings.stop_grace_seconds - settings.limits.drain_seconds - 1)
