"""GET /api/v1/health: the health of this replica, of Kubernetes and of NATS. The response is always 200."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib.metadata import version
from typing import Literal

from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.retry import NO_RETRY
from gpu_runtime.process.health_server import HealthCheck
from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, NoQuery, RouteGroup, View

PROBE_TIMEOUT_SECONDS = 1.5
PROBE_CACHE_TTL_SECONDS = 0.5
"""Callers share one probe result for this time, because the route has no authentication and no rate limit."""


class Health(View, frozen=True, kw_only=True):
    status: Literal["ok", "degraded"]
    """degraded if at least some of the other routes answer 503, otherwise ok."""

    version: str
    """The version of this replica."""

    kubernetes_connected: bool
    """Whether the API server answers."""

    kubernetes_version: str | None = None
    """The version of the API server. Absent if it does not answer."""

    nats_connected: bool
    """Whether NATS can be used. Only invocations and dead letters need NATS."""

    caches_complete: bool
    """Whether the informer caches of this replica are complete and up to date."""

    error: str | None = None
    """The reason for the status degraded."""


class KubeProbe:
    """Checks whether the API server answers. Concurrent callers share one request."""

    def __init__(self, client: KubeClient) -> None:
        # The connection limit does not apply: the probe diagnoses slow requests, so it must not wait behind them.
        self._client = client.with_options(PROBE_TIMEOUT_SECONDS, NO_RETRY).without_connection_limit()
        self._lock = asyncio.Lock()
        self._checked_at = float("-inf")
        self._version, self._error = "", ""

    async def check(self) -> tuple[str, str]:
        """Return the version of the API server and an empty error, or an empty version and the error."""
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


@dataclass(frozen=True)
class HealthService:
    probe_kubernetes: Callable[[], Awaitable[tuple[str, str]]]
    stale_reason: HealthCheck
    nats_problem: HealthCheck


HEALTH = RouteGroup[HealthService]("health", None, common_faults=())


@HEALTH.route("GET", "/api/v1/health", {200: Health})
async def get_health(checks: HealthService, request: APIRequest[None, NoQuery]) -> APIResponse:  # noqa: ARG001
    """Get the health of this replica and its dependencies.

    Needs no token. The status is 200 even if Kubernetes or NATS is unreachable.
    """
    kubernetes_version, error = await checks.probe_kubernetes()
    return APIResponse(200, build_health(kubernetes_version, error, checks.stale_reason(), checks.nats_problem()))


def build_health(
    kubernetes_version: str, kubernetes_error: str, stale_reason: str | None, nats_problem: str | None
) -> Health:
    """Combine the checks. Each argument except the version is an error message. Without an error, it is empty or
    None."""
    problems = [kubernetes_error or stale_reason or "", nats_problem or ""]
    return Health(
        status="degraded" if any(problems) else "ok",
        version=version("gpu-runtime"),
        kubernetes_connected=not kubernetes_error,
        kubernetes_version=kubernetes_version or None,
        nats_connected=nats_problem is None,
        caches_complete=stale_reason is None,
        error="; ".join(filter(None, problems)) or None,
    )
