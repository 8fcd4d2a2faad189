"""GET /api/v1/health: whether this replica and what it stands on are well. It answers 200 whatever it finds."""

import asyncio
import time
from collections.abc import Awaitable, Callable, Sequence
from importlib.metadata import version
from typing import Literal

from gpu_runtime.kube.client import Client
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.kube.retry import IMPATIENT
from gpu_runtime.process.health_server import Check
from gpu_runtime.runtime_api.http.route import Answer, Call, NoQuery, Route, View

ASK_SECONDS = 1.5
FRESH_SECONDS = 0.5
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


class Pulse:
    """Asks the API server for a sign of life, for all who want to know at the moment."""

    def __init__(self, client: Client) -> None:
        # Urgent: it must not wait behind the very requests whose slowness somebody is looking into.
        self._client = client.patient(ASK_SECONDS, IMPATIENT).urgent()
        self._one_at_a_time = asyncio.Lock()
        self._felt_at = float("-inf")
        self._version, self._error = "", ""

    async def feel(self) -> tuple[str, str]:
        """The version of the API server, or why there is none."""
        async with self._one_at_a_time:
            if time.monotonic() - self._felt_at > FRESH_SECONDS:
                self._version, self._error = await self._ask()
                self._felt_at = time.monotonic()
            return self._version, self._error

    async def _ask(self) -> tuple[str, str]:
        try:
            async with asyncio.timeout(ASK_SECONDS):
                return await self._client.server_version(), ""
        except KubeError as error:
            return "", f"Kubernetes cannot be reached: {error}"
        except TimeoutError:
            return "", f"Kubernetes cannot be reached: no answer within {ASK_SECONDS:g} s"


def routes(feel: Callable[[], Awaitable[tuple[str, str]]], unusable: Check, nats: Check) -> Sequence[Route]:
    async def health(_call: Call[None, NoQuery]) -> Answer:
        kubernetes, error = await feel()
        return Answer(200, state_of_health(kubernetes, error, unusable(), nats()))

    return (
        Route(
            method="GET",
            path="/api/v1/health",
            name="getHealth",
            summary="Whether this replica and what it stands on are well",
            description="Open to everybody. Answers 200 also when Kubernetes or NATS is away, and says so.",
            handler=health,
            answers={200: Health},
            tag="health",
        ),
    )


def state_of_health(kubernetes: str, error: str, unusable: str | None, nats: str | None) -> Health:
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
