"""Serves /healthz, /readyz and /metrics over HTTP, on a separate port or next to other paths."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from typing import TypeAlias

from aiohttp import web
from aiohttp.http_exceptions import HttpProcessingError
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.process.shared_settings import BindAddressSettings

HealthCheck: TypeAlias = Callable[[], str | None]
"""Returns None if the check passes, else a sentence that says what is wrong."""

HealthHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_server_error(record: logging.LogRecord) -> bool:
    """Whether a log record is about an error of this server.

    The server responds with 400 to malformed HTTP. These errors of clients must not fill the log with tracebacks.
    """
    return record.exc_info is None or not isinstance(record.exc_info[1], HttpProcessingError)


logger = logging.getLogger(__name__)
logger.addFilter(_is_server_error)


@asynccontextmanager
async def serve_health(
    settings: BindAddressSettings,
    registry: CollectorRegistry,
    stopping: asyncio.Event,
    readiness_checks: Mapping[str, HealthCheck],
    liveness_checks: Mapping[str, HealthCheck] | None = None,
) -> AsyncIterator[int]:
    """Serve until the block ends, and yield the port. A process that is stopping is healthy but not ready."""
    app = web.Application()
    for path, handler in health_handlers(registry, stopping, readiness_checks, liveness_checks).items():
        app.router.add_get(path, handler)
    async with serve_app(app, settings, shutdown_timeout=1.0) as port:
        yield port


def health_handlers(
    registry: CollectorRegistry,
    stopping: asyncio.Event,
    readiness_checks: Mapping[str, HealthCheck],
    liveness_checks: Mapping[str, HealthCheck] | None = None,
) -> dict[str, HealthHandler]:
    """Return the handlers of every process, by path."""
    return {
        "/healthz": _check_handler(liveness_checks or {}),
        "/readyz": _check_handler({"stopping": lambda: _stopping_reason(stopping), **readiness_checks}),
        "/metrics": _metrics_handler(registry),
    }


@asynccontextmanager
async def serve_app(
    app: web.Application, settings: BindAddressSettings, shutdown_timeout: float, connection_close_delay: float = 0.0
) -> AsyncIterator[int]:
    """Serve until the block ends, and yield the port. Then requests in flight may finish within `shutdown_timeout` s.

    A connection that is open when the listener closes may already carry a request. The server answers requests on open
    connections for another `connection_close_delay` seconds.
    """
    # No handler accepts compressed bodies, so a rejected body does not need to be decompressed first.
    runner = web.AppRunner(
        app, access_log=None, logger=logger, shutdown_timeout=shutdown_timeout, auto_decompress=False
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            raise Unavailable(f"cannot listen on bindAddress {settings.bind_address}: {error.strerror}") from error
        yield runner.addresses[0][1]
        await site.stop()
        await asyncio.sleep(connection_close_delay)
    finally:
        await runner.cleanup()


def _stopping_reason(stopping: asyncio.Event) -> str | None:
    return "the process is shutting down" if stopping.is_set() else None


def _check_handler(checks: Mapping[str, HealthCheck]) -> HealthHandler:
    async def handle(_request: web.Request) -> web.Response:
        results = {name: check() for name, check in checks.items()}
        lines = [f"[{'-' if problem else '+'}] {name}: {problem or 'ok'}\n" for name, problem in results.items()]
        return web.Response(text="".join(lines) or "ok\n", status=503 if any(results.values()) else 200)

    return handle


def _metrics_handler(registry: CollectorRegistry) -> HealthHandler:
    async def handle(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return handle
