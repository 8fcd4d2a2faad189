"""/healthz, /readyz and /metrics over HTTP, on a port of their own or beside other paths."""

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
"""Nothing where all is well, else the sentence that says what is not."""

HealthHandler: TypeAlias = Callable[[web.Request], Awaitable[web.StreamResponse]]


def _is_server_error(record: logging.LogRecord) -> bool:
    """Whoever speaks no HTTP is answered with 400; that must not fill our log with tracebacks."""
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
    """Serve until the block ends; gives the port. A process that is stopping is healthy and not ready."""
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
    """What every process answers, by path."""
    return {
        "/healthz": _check_handler(liveness_checks or {}),
        "/readyz": _check_handler({"stopping": lambda: _stopping_reason(stopping), **readiness_checks}),
        "/metrics": _metrics_handler(registry),
    }


@asynccontextmanager
async def serve_app(
    app: web.Application, settings: BindAddressSettings, shutdown_timeout: float, connection_close_delay: float = 0.0
) -> AsyncIterator[int]:
    """Take requests until the block ends, then let those in flight finish within so many seconds. Gives the port.

    A connection that is open when the listener closes may have a request on its way: for so long it is still answered.
    """
    # Nobody here takes compressed bodies, and what is refused need not be unpacked first.
    runner = web.AppRunner(
        app, access_log=None, logger=logger, shutdown_timeout=shutdown_timeout, auto_decompress=False
    )
    await runner.setup()
    try:
        site = web.TCPSite(runner, settings.host, settings.port)
        try:
            await site.start()
        except OSError as error:
            raise Unavailable(f"cannot listen on {settings.bind_address}: {error.strerror}") from error
        yield runner.addresses[0][1]
        await site.stop()
        await asyncio.sleep(connection_close_delay)
    finally:
        await runner.cleanup()


def _stopping_reason(stopping: asyncio.Event) -> str | None:
    return "the process was told to stop" if stopping.is_set() else None


def _check_handler(checks: Mapping[str, HealthCheck]) -> HealthHandler:
    async def answer(_request: web.Request) -> web.Response:
        results = {name: check() for name, check in checks.items()}
        lines = [f"[{'-' if problem else '+'}] {name}: {problem or 'ok'}\n" for name, problem in results.items()]
        return web.Response(text="".join(lines) or "ok\n", status=503 if any(results.values()) else 200)

    return answer


def _metrics_handler(registry: CollectorRegistry) -> HealthHandler:
    async def answer(request: web.Request) -> web.Response:
        encode, content_type = choose_encoder(request.headers.get("Accept", ""))
        return web.Response(body=encode(registry), headers={"Content-Type": content_type})

    return answer
