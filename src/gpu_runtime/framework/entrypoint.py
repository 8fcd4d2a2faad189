"""Runs the user's process: opens the socket, serves the handler, and shuts down gracefully on SIGTERM or SIGINT."""

import asyncio
import os
import signal
import sys
import threading

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.executor import HandlerExecutor
from gpu_runtime.framework.framework_server import FrameworkServer
from gpu_runtime.framework.registry import HandlerFunction, registered_handler
from gpu_runtime.framework.settings import FrameworkServerSettings, from_environment
from gpu_runtime.framework.stderr_log import log_line
from gpu_runtime.framework.unix_socket import UnixSocketListener, listen

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)


def exit_on_sigterm_while_loading() -> None:
    """Let SIGTERM end the process while the user's module still loads, for example a model.

    The kernel does not deliver a signal without a handler to the first process of a container. The pod would keep its
    GPU until the end of its termination grace period.
    """
    if os.getpid() == 1 and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))


def serve() -> None:
    """Serve the registered handler until SIGTERM or SIGINT. Running invocations finish before this function returns."""
    if threading.current_thread() is not threading.main_thread():
        raise CannotServe("call serve() in the main thread: Python delivers signals only there")
    settings, handler = from_environment(os.environ), registered_handler()
    asyncio.run(_serve_until_signal(settings, handler))


async def serve_until(stopping: asyncio.Event, settings: FrameworkServerSettings, handler: HandlerFunction) -> None:
    """Serve the handler until `stopping` is set, then wait for running invocations."""
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
    acceptor = await asyncio.get_running_loop().create_unix_server(server.create_protocol, sock=listener.socket)
    log_line(f"server started: listening on {settings.socket_path} with concurrency {settings.concurrency}")
    try:
        await stopping.wait()
    finally:
        listener.unlink()
        acceptor.close()
    log_line("server stopping: waiting for running invocations")
    await server.shutdown()
