"""GET /api/v1/health: whether this replica and what it stands on are well. It answers 200 whatever it finds."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Literal

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.retry import NO_RETRY
from gpu_runtime.process.health_server import HealthCheck
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, Route, View

PROBE_TIMEOUT_SECONDS = 1.5
PROBE_CACHE_TTL_SECONDS = 0.5
"""Callers share an answer that is not older than this: anybody may ask, as often as they like."""


class Health(View, frozen=True, kw_only=True):
    status: Literal["ok", "degraded"]
    """ok, or degraded: then some or all of the other routes answer 503."""

    version: str
    """The version of this replica."""

    kubernetes_connected: bool
    """Whether the API server answered just now."""

    kubernetes_version: str | None = None
    """The API server's version, where it answered."""

    nats_connected: bool
    """Whether NATS can be used. Only invocations and dead letters need it."""

    caches_complete: bool
    """Whether this replica knows the state of the cluster."""

    error: str | None = None
    """What is not well."""


class KubeProbe:
    """Asks the API server for a sign of life, for all who want to know at the moment."""

    def __init__(self, client: KubeClient) -> None:
        # Urgent: it must not wait behind the very requests whose slowness somebody is looking into.
        self._client = client.with_options(PROBE_TIMEOUT_SECONDS, NO_RETRY).without_connection_limit()
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._version, self._error = "", ""

    async def check(self) -> tuple[str, str]:
        """The version of the API server, or why there is none."""
        async with self._lock:
            if time.monotonic() - self._checked_at > PROBE_CACHE_TTL_SECONDS:
                self._version, self._error = await self._query_version()
                self._checked_at = time.monotonic()
            return self._version, self._error

    async def _query_version(self) -> tuple[str, str]:
        try:
            async with asyncio.timeout(PROBE_TIMEOUT_SECONDS):
                return await self._client.server_version(), ""
        except KubeError as error:
            return "", f"Kubernetes cannot be reached: {error}"
        except TimeoutError:
            return "", f"Kubernetes cannot be reached: no answer within {PROBE_TIMEOUT_SECONDS:g} s"


def routes(feel: Callable[[], Awaitable[tuple[str, str]]], unusable: HealthCheck, nats: HealthCheck) -> Sequence[Route]:
    async def health(_call: APIRequest[None, NoQuery]) -> APIResponse:
        kubernetes, error = await feel()
        return APIResponse(200, build_health(kubernetes, error, unusable(), nats()))

    return (
        Route(
            method="GET",
            path="/api/v1/health",
            name="getHealth",
            summary="Whether this replica and what it stands on are well",
            description="Open to everybody. Answers 200 also when Kubernetes or NATS is away, and says so.",
            handler=health,
            responses={200: Health},
            tag="health",
        ),
    )


def build_health(kubernetes: str, error: str, unusable: str | None, nats: str | None) -> Health:
    """Each of the arguments but the first says what is wrong, if anything is."""
    problems = [error or unusable or "", nats or ""]
    return Health(
        status="degraded" if any(problems) else "ok",
        version=version("gpu-runtime"),
        kubernetes_connected=not error,
        kubernetes_version=kubernetes or None,
        nats_connected=nats is None,
        caches_complete=unusable is None,
        error="; ".join(filter(None, problems)) or None,
    )
