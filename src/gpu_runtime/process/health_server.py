"""Serves /healthz, /readyz and /metrics over HTTP on a separate port, and serves other HTTP applications."""

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
from gpu_runtime.process.bounded_http import LISTEN_BACKLOG, HTTPListener
from gpu_runtime.process.connection_table import ConnectionLimits
from gpu_runtime.process.shared_settings import BindAddressSettings

HEALTH_CONNECTION_LIMITS = ConnectionLimits(max_connections=256, max_connections_per_peer=64)
"""Enough for the kubelet and for several Prometheus servers."""

HealthCheck: TypeAlias = Callable[[], str | None]
"""Returns None if the check passes, otherwise a sentence that describes the problem."""


class HealthWarning(str):
    """The result of a check that found a problem, but that does not make the process unready."""

    __slots__ = ()


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
    handlers = health_handlers(stopping, readiness_checks) | metrics_handlers(registry)
    for path, handler in handlers.items():
        app.router.add_get(path, handler)
    async with serve_app(app, settings, shutdown_timeout=1.0) as port:
        yield port


def health_handlers(stopping: asyncio.Event, readiness_checks: Mapping[str, HealthCheck]) -> dict[str, HealthHandler]:
    """Return the handlers that every process has, by path. A process that answers is healthy."""

    def stopping_reason() -> str | None:
        return "the process is shutting down" if stopping.is_set() else None

    return {
        "/healthz": _check_handler({}),
        "/readyz": _check_handler({"stopping": stopping_reason, **readiness_checks}),
    }


def metrics_handlers(registry: CollectorRegistry) -> dict[str, HealthHandler]:
    """Return the handler of /metrics. The API port does not have it: a scrape takes long and needs no token."""
    return {"/metrics": _metrics_handler(registry)}


@asynccontextmanager
async def serve_app(
    app: web.Application,
    settings: BindAddressSettings,
    shutdown_timeout: float,
    connection_close_delay: float = 0.0,
    connection_limits: ConnectionLimits = HEALTH_CONNECTION_LIMITS,
) -> AsyncIterator[int]:
    """Serve until the block ends, and yield the port.

    When the block ends, the server closes the listener. A client may already have sent a request on an open connection,
    so the server answers requests on open connections for another `connection_close_delay` seconds. Then the requests
    in flight have `shutdown_timeout` seconds to finish.
    """
    runner = web.AppRunner(app, shutdown_timeout=shutdown_timeout)
    await runner.setup()
    try:
        listener = await _listen(runner, settings, connection_limits)
        try:
            yield listener.sockets[0].getsockname()[1]
        finally:
            listener.close()
        await asyncio.sleep(connection_close_delay)
    finally:
        await runner.cleanup()


async def _listen(runner: web.AppRunner, settings: BindAddressSettings, limits: ConnectionLimits) -> asyncio.Server:
    assert runner.server is not None  # noqa: S101 - setup has created it
    http = HTTPListener.for_server(runner.server, limits, logger)
    try:
        return await asyncio.get_running_loop().create_server(
            http.new_connection, settings.host, settings.port, backlog=LISTEN_BACKLOG, reuse_address=True
        )
    except OSError as error:
        raise Unavailable(f"cannot listen on bindAddress {settings.bind_address}: {error.strerror}") from error


def _check_handler(checks: Mapping[str, HealthCheck]) -> HealthHandler:
    async def handle(_request: web.Request) -> web.Response:
        results = {name: check() for name, check in checks.items()}
        lines = [f"[{_mark(problem)}] {name}: {problem or 'ok'}\n" for name, problem in results.items()]
        is_failed = any(_mark(problem) == "-" for problem in results.values())
        return web.Response(text="".join(lines) or "ok\n", status=503 if is_failed else 200)

    return handle


def _mark(problem: str | None) -> str:
    if problem is None:
        return "+"
    return "!" if isinstance(problem, HealthWarning) else "-"


def _metrics_handler(registry: CollectorRegistry) -> HealthHandler:
    async def handle(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return handle
