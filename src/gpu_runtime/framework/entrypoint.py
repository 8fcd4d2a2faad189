"""The life of the user's process: from serve() to SIGTERM."""

import asyncio
import os
import signal
import threading

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.executor import HandlerExecutor
from gpu_runtime.framework.framework_server import FrameworkServer
from gpu_runtime.framework.registry import HandlerFunction, registered_handler
from gpu_runtime.framework.settings import FrameworkServerSettings, from_environment
from gpu_runtime.framework.stderr_log import log_line
from gpu_runtime.framework.unix_socket import UnixSocketListener, listen

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve() -> None:
    """Serve the handler until SIGTERM or SIGINT; what runs then is finished before this returns."""
    if threading.current_thread() is not threading.main_thread():
        raise CannotServe("serve() must be called in the main thread, where signals arrive")
    settings, handler = from_environment(os.environ), registered_handler()
    asyncio.run(_serve_until_signal(settings, handler))


async def serve_until(stopping: asyncio.Event, settings: FrameworkServerSettings, handler: HandlerFunction) -> None:
    listener = listen(settings.socket_path)
    try:
        await _accept_until_stopped(stopping, listener, settings, handler)
    finally:
        listener.unlink()


async def _serve_until_signal(settings: FrameworkServerSettings, handler: HandlerFunction) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for each in STOP_SIGNALS:
        loop.add_signal_handler(each, stopping.set)
    await serve_until(stopping, settings, handler)


async def _accept_until_stopped(
    stopping: asyncio.Event, listener: UnixSocketListener, settings: FrameworkServerSettings, handler: HandlerFunction
) -> None:
    server = FrameworkServer(settings, HandlerExecutor(handler, settings.concurrency))
    accepting = await asyncio.get_running_loop().create_unix_server(server.create_protocol, sock=listener.socket)
    log_line(f"serving at {settings.socket_path}, {settings.concurrency} at a time")
    try:
        await stopping.wait()
    finally:
        listener.unlink()
        accepting.close()
    log_line("stopping: what runs is finished first")
    await server.shutdown()
