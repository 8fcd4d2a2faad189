"""Half-open connections and requests without a token do not slow down an authenticated caller.

`make connection-flood` opens 2,000 connections and sends 200 requests per second for 30 seconds.
"""

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from itertools import cycle

import aiohttp
import uvloop

from gpu_runtime.process.connection_table import ConnectionLimits
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.runtime_api.http.route import Scope
from gpu_runtime.runtime_api.http.swagger import swagger_handlers
from gpu_runtime.runtime_api.settings import RequestLimitSettings
from tests.unit.runtime_api.http.http_harness import AppOptions, FixedAuthenticator, make_route, running_app

CONNECTIONS = int(os.environ.get("FLOOD_CONNECTIONS", "300"))
REQUESTS_PER_SECOND = int(os.environ.get("FLOOD_REQUESTS_PER_SECOND", "50"))
SECONDS = float(os.environ.get("FLOOD_SECONDS", "4"))
MAX_P99_SECONDS = 1.0
PATHS = ("/swagger/swagger-ui-bundle.js", "/openapi.json", "/items/a", "/nothing", "/healthz")
LIMITS = RequestLimitSettings()


async def hold_half_open(port: int) -> None:
    """Keep one connection with an incomplete head. Open it again when the server closes it."""
    while True:
        with suppress(OSError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(b"GET /items/a HTTP/1.1\r\nHost: x\r\n")
                await reader.read()
            finally:
                writer.close()
        await asyncio.sleep(0.5)


async def send_without_token(session: aiohttp.ClientSession, url: str, statuses: Counter[int]) -> None:
    with suppress(aiohttp.ClientError):
        async with session.get(url, headers={"Accept-Encoding": "identity"}) as response:
            await response.read()
            statuses[response.status] += 1


async def flood(port: int, statuses: Counter[int]) -> None:
    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as tasks:
        for _ in range(CONNECTIONS):
            tasks.create_task(hold_half_open(port))
        for path in cycle(PATHS):
            tasks.create_task(send_without_token(session, f"http://127.0.0.1:{port}{path}", statuses))
            await asyncio.sleep(1 / REQUESTS_PER_SECOND)


async def authenticated_latencies(port: int) -> list[float]:
    """Send a request with a token every 20 ms, half of them on new connections."""
    latencies: list[float] = []
    ends = time.monotonic() + SECONDS
    headers = {"Authorization": "Bearer good"}
    async with AsyncExitStack() as stack:
        kept = await stack.enter_async_context(aiohttp.ClientSession(headers=headers))
        fresh_connector = aiohttp.TCPConnector(force_close=True)
        fresh = await stack.enter_async_context(aiohttp.ClientSession(headers=headers, connector=fresh_connector))
        for session in cycle((kept, fresh)):
            if time.monotonic() > ends:
                return latencies
            started = time.monotonic()
            async with session.get(f"http://127.0.0.1:{port}/items/a") as response:
                assert response.status == 200
                await response.read()
            latencies.append(time.monotonic() - started)
            await asyncio.sleep(0.02)
    return latencies


@asynccontextmanager
async def flooded(port: int) -> AsyncIterator[Counter[int]]:
    statuses: Counter[int] = Counter()
    task = asyncio.create_task(flood(port, statuses))
    try:
        await asyncio.sleep(1 + CONNECTIONS / 1000)
        yield statuses
    finally:
        task.cancel()
        await asyncio.wait({task})


def percentile(latencies: list[float], share: float) -> float:
    return sorted(latencies)[min(len(latencies) - 1, int(len(latencies) * share))]


async def measure() -> tuple[list[float], Counter[int]]:
    options = AppOptions(
        authenticator=FixedAuthenticator(Scope.RUNTIME),
        anonymous_rate_limiter=CallerRateLimiter(LIMITS.anonymous_requests_per_second, LIMITS.burst),
        plain_handlers=swagger_handlers(b"{}"),
        connection_limits=ConnectionLimits(LIMITS.max_connections, LIMITS.max_connections_per_peer),
    )
    async with running_app([make_route()], options) as edge, flooded(edge.port) as statuses:
        return await authenticated_latencies(edge.port), statuses


def test_authenticated_caller_is_served_during_a_flood_of_half_open_connections_and_anonymous_requests() -> None:
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        latencies, statuses = runner.run(measure())
    p50, p99 = percentile(latencies, 0.5), percentile(latencies, 0.99)
    print(
        f"\n{CONNECTIONS} half-open connections, {REQUESTS_PER_SECOND} anonymous requests per second:"
        f" {len(latencies)} requests, p50 {p50 * 1000:.1f} ms, p99 {p99 * 1000:.1f} ms,"
        f" longest {max(latencies) * 1000:.1f} ms; answers to the flood: {dict(sorted(statuses.items()))}"
    )
    assert p99 < MAX_P99_SECONDS
    assert statuses.total() > REQUESTS_PER_SECOND * SECONDS / 2
