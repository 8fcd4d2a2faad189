"""Serves /healthz, /readyz and /metrics over HTTP, on a separate port or on the port of another HTTP server."""

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
"""Returns None if the check passes, otherwise a sentence that describes the problem."""

HealthHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_server_error(record: logging.LogRecord) -> bool:
    """Return whether a log record is about an error of this server, not of a client.

    The server responds with 400 to malformed HTTP. Such client errors must not fill the log with tracebacks.
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
) -> AsyncIterator[int]:
    """Serve until the block ends, and yield the port. A process that is stopping is healthy but not ready."""
    app = web.Application()
    for path, handler in health_handlers(registry, stopping, readiness_checks).items():
        app.router.add_get(path, handler)
    async with serve_app(app, settings, shutdown_timeout=1.0) as port:
        yield port


def health_handlers(
    registry: CollectorRegistry,
    stopping: asyncio.Event,
    readiness_checks: Mapping[str, HealthCheck],
) -> dict[str, HealthHandler]:
    """Return the handlers that every process has, by path. A process that answers is healthy."""

    def stopping_reason() -> str | None:
        return "the process is shutting down" if stopping.is_set() else None

    return {
        "/healthz": _check_handler({}),
        "/readyz": _check_handler({"stopping": stopping_reason, **readiness_checks}),
        "/metrics": _metrics_handler(registry),
    }


@asynccontextmanager
async def serve_app(
    app: web.Application, settings: BindAddressSettings, shutdown_timeout: float, connection_close_delay: float = 0.0
) -> AsyncIterator[int]:
    """Serve until the block ends, and yield the port.

    When the block ends, the server closes the listener. A client may already have sent a request on an open connection,
    so the server answers requests on open connections for another `connection_close_delay` seconds. Then the requests
    in flight have `shutdown_timeout` seconds to finish.
    """
    # No handler accepts compressed bodies, so the server does not decompress a body that the handler rejects.
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
