"""/healthz, /readyz and /metrics over HTTP."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpu_runtime.process.sections import Endpoints

Check: TypeAlias = Callable[[], str | None]
"""Nothing where all is well, else the sentence that says what is not."""

Handler: TypeAlias = Callable[[web.Request], Awaitable[web.Response]]


@asynccontextmanager
async def serve_endpoints(
    settings: Endpoints,
    registry: CollectorRegistry,
    stopping: asyncio.Event,
    ready: Mapping[str, Check],
    healthy: Mapping[str, Check] | None = None,
) -> AsyncIterator[int]:
    """Serve until the block ends; gives the port. A process that is stopping is healthy and not ready."""
    app = web.Application()
    app.router.add_get("/healthz", _checked(healthy or {}))
    app.router.add_get("/readyz", _checked({"stopping": lambda: _stopping(stopping), **ready}))
    app.router.add_get("/metrics", _exposed(registry))
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=1.0)
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        await site.start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


def _stopping(stopping: asyncio.Event) -> str | None:
    return "the process was told to stop" if stopping.is_set() else None


def _checked(checks: Mapping[str, Check]) -> Handler:
    async def answer(_request: web.Request) -> web.Response:
        results = {name: check() for name, check in checks.items()}
        lines = [f"[{'-' if problem else '+'}] {name}: {problem or 'ok'}\n" for name, problem in results.items()]
        return web.Response(text="".join(lines) or "ok\n", status=503 if any(results.values()) else 200)

    return answer


def _exposed(registry: CollectorRegistry) -> Handler:
    async def answer(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return answer
