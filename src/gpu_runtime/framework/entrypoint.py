"""The life of the user's process: from serve() to SIGTERM."""

import asyncio
import os
import signal
import threading

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.executor import Calls
from gpu_runtime.framework.framework_server import Server
from gpu_runtime.framework.registry import Handler, registered
from gpu_runtime.framework.settings import Settings, from_environment
from gpu_runtime.framework.stderr_log import say
from gpu_runtime.framework.unix_socket import Listener, listen

SIGNALS = (signal.SIGTERM, signal.SIGINT)


def serve() -> None:
    """Serve the handler until SIGTERM or SIGINT; what runs then is finished before this returns."""
    if threading.current_thread() is not threading.main_thread():
        raise CannotServe("serve() must be called in the main thread, where signals arrive")
    settings, handler = from_environment(os.environ), registered()
    asyncio.run(_until_signal(settings, handler))


async def serve_until(stopping: asyncio.Event, settings: Settings, handler: Handler) -> None:
    listener = listen(settings.socket)
    try:
        await _accept_until(stopping, listener, settings, handler)
    finally:
        listener.withdraw()


async def _until_signal(settings: Settings, handler: Handler) -> None:
    loop, stopping = asyncio.get_running_loop(), asyncio.Event()
    for each in SIGNALS:
        loop.add_signal_handler(each, stopping.set)
    await serve_until(stopping, settings, handler)


async def _accept_until(stopping: asyncio.Event, listener: Listener, settings: Settings, handler: Handler) -> None:
    server = Server(settings, Calls(handler, settings.concurrency))
    accepting = await asyncio.get_running_loop().create_unix_server(server.protocol, sock=listener.socket)
    say(f"serving at {settings.socket}, {settings.concurrency} at a time")
    try:
        await stopping.wait()
    finally:
        listener.withdraw()
        accepting.close()
    say("stopping: what runs is finished first")
    await server.finish()
