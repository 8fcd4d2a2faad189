"""The HTTP connections of all processes: aiohttp's connections, with limits on their number and on their time.

The server disconnects a client that sends or reads too slowly. Otherwise a few thousand clients that send one byte per
minute could use all connections of a process.
"""

import asyncio
import logging
from dataclasses import dataclass
from typing import Any

from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from gpu_runtime.process.connection_table import ConnectionLimits, ConnectionTable

HEAD_TIMEOUT_SECONDS = 10.0
"""Time from the opening of a connection, or from the first byte of a later request, to the end of the request's
head."""
IDLE_TIMEOUT_SECONDS = 30.0
"""Time after a response in which the next request must begin."""
STALL_TIMEOUT_SECONDS = 30.0
"""Time in which a client must read what the server has buffered for it."""
LISTEN_BACKLOG = 1024
"""Number of connections that the kernel accepts before the process does."""


@dataclass(frozen=True)
class HTTPListener:
    """Creates a protocol object for each connection of a server."""

    server: web.Server
    connections: ConnectionTable["BoundedRequestHandler"]
    logger: logging.Logger

    @classmethod
    def for_server(cls, server: web.Server, limits: ConnectionLimits, logger: logging.Logger) -> "HTTPListener":
        return cls(server, ConnectionTable(limits), logger)

    def new_connection(self) -> "BoundedRequestHandler":
        # No handler accepts compressed bodies, so the server does not decompress a body that the handler rejects.
        return BoundedRequestHandler(
            self.server,
            self.connections,
            loop=asyncio.get_running_loop(),
            logger=self.logger,
            access_log=None,
            auto_decompress=False,
            keepalive_timeout=IDLE_TIMEOUT_SECONDS,
        )


class BoundedRequestHandler(RequestHandler):
    """One connection. The table of connections knows whether a request is in flight."""

    __slots__ = ("_connections", "_head_timer", "_stall_timer")

    def __init__(
        self, server: web.Server, connections: ConnectionTable["BoundedRequestHandler"], **options: Any
    ) -> None:
        super().__init__(server, **options)
        self._connections = connections
        self._head_timer: asyncio.TimerHandle | None = None
        self._stall_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        super().connection_made(transport)
        self._start_head_timer()
        address = transport.get_extra_info("peername")
        replaced = self._connections.add(self, str(address[0]) if address else "")
        if replaced is not None:
            replaced.abort()

    def connection_lost(self, exc: BaseException | None) -> None:
        self._connections.remove(self)
        self._stop_head_timer()
        self._stop_stall_timer()
        task = None if self._request_in_progress else self._task_handler
        super().connection_lost(exc)
        if task is not None:  # it may still wait for the rest of a body that the client will not send
            task.cancel()

    def data_received(self, data: bytes) -> None:
        requests = self._request_count
        super().data_received(data)
        if self._request_count > requests:
            self._stop_head_timer()
            self._connections.mark_busy(self)
        elif self._head_timer is None and not self._connections.is_busy(self):
            self._start_head_timer()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        try:
            return await super().finish_response(request, resp, start_time)
        finally:
            if not self._messages:  # otherwise the client has already sent the next request
                self._connections.mark_idle(self)

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stop_stall_timer()
        self._stall_timer = self._loop.call_later(STALL_TIMEOUT_SECONDS, self.abort)

    def resume_writing(self) -> None:
        self._stop_stall_timer()
        super().resume_writing()

    def abort(self) -> None:
        """Close the connection now, without sending what is buffered."""
        transport = self.transport
        self.force_close()
        if transport is not None:
            transport.abort()

    def _start_head_timer(self) -> None:
        self._head_timer = self._loop.call_later(HEAD_TIMEOUT_SECONDS, self.abort)

    def _stop_head_timer(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _stop_stall_timer(self) -> None:
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None
