"""The HTTP server on the unix socket: it accepts connections and routes two paths.

Each connection carries one request at a time. The invoke path calls the handler, the health path reports whether the
worker can serve. On shutdown, the server sends the responses to all requests in progress.
"""

import asyncio
import contextlib
import select
import socket
from urllib.parse import unquote

from gpu_runtime.framework.errors import BadRequest
from gpu_runtime.framework.executor import HandlerExecutor
from gpu_runtime.framework.http1 import READ_SIZE_BYTES, RequestHead, read_body, read_head, serialize_response
from gpu_runtime.framework.request import request_of
from gpu_runtime.framework.responses import EncodedResponse, error_response
from gpu_runtime.framework.settings import FrameworkServerLimits, FrameworkServerSettings
from gpu_runtime.framework.stderr_log import log_traceback


class DisconnectReader(asyncio.StreamReader):
    """A stream reader that reports when the caller disconnects, also while no coroutine is reading."""

    def __init__(self, limit: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit, loop)
        self.disconnected: asyncio.Future[None] = loop.create_future()
        self._socket: socket.socket | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._socket = transport.get_extra_info("socket")

    def feed_eof(self) -> None:
        super().feed_eof()
        if not self.disconnected.done() and self._socket is not None and _is_disconnected(self._socket):
            self.disconnected.set_result(None)


class FrameworkServer:
    """Serves connections in the event loop that creates it."""

    def __init__(self, settings: FrameworkServerSettings, executor: HandlerExecutor) -> None:
        self._limits = settings.limits
        self._invoke_path = unquote(settings.invoke_path)
        self._methods_by_path = {self._invoke_path: "POST", unquote(settings.health_path): "GET"}
        self._executor = executor
        self._connections: set[ServerConnection] = set()
        self._stopping = False

    def create_protocol(self) -> asyncio.StreamReaderProtocol:
        """Create the protocol of a connection that the event loop has just accepted."""
        reader = DisconnectReader(self._limits.max_head_bytes)
        return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._serve_connection(reader, writer))

    async def shutdown(self) -> None:
        """Close idle connections, and wait until every request in progress has its response."""
        self._stopping = True
        for connection in tuple(self._connections):
            connection.stop_after_request()
        if self._connections:
            await asyncio.wait({connection.closed for connection in self._connections})

    async def _serve_connection(self, reader: DisconnectReader, writer: asyncio.StreamWriter) -> None:
        connection = ServerConnection(reader, writer, self._limits, self)
        self._connections.add(connection)
        try:
            if not self._stopping:
                await connection.serve_requests()
        except (ConnectionError, TimeoutError):
            pass  # the caller disconnected or does not read its response
        except Exception as error:  # noqa: BLE001 - a bug on one connection must not end the others
            log_traceback(
                "server connection raised an unexpected exception: this is a bug in gpu_runtime.framework", error
            )
        finally:
            await connection.close()
            self._connections.discard(connection)

    def check_route(self, head: RequestHead) -> None:
        """Reject an unknown path or a wrong method before the server reads the body."""
        method = self._methods_by_path.get(self._path(head))
        if method is None:
            raise BadRequest(404, f"unknown path; the server has {' and '.join(self._methods_by_path)}")
        if head.method != method and not (head.method == "HEAD" and method == "GET"):
            raise BadRequest(405, f"wrong method for this path; use {method}")

    async def handle(self, head: RequestHead, body: bytes, disconnected: asyncio.Future[None]) -> EncodedResponse:
        """Call the handler if the request is for the invoke path. Otherwise report the health."""
        if self._path(head) == self._invoke_path:
            return await self._executor.execute(request_of(head.headers, body), disconnected)
        if self._executor.stuck:
            return error_response(503, "Stuck", "every slot is occupied by a handler that is past its deadline")
        return EncodedResponse(200, "application/json", b'{"status":"ok"}')

    def _path(self, head: RequestHead) -> str:
        target = unquote(head.target)
        return target if target in self._methods_by_path else unquote(head.target.partition("?")[0])


class ServerConnection:
    """Serves the requests of one connection, one after another, until either side closes it."""

    def __init__(
        self,
        reader: DisconnectReader,
        writer: asyncio.StreamWriter,
        limits: FrameworkServerLimits,
        server: FrameworkServer,
    ) -> None:
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._server = server
        self._idle = True
        self._stopping = False

    def stop_after_request(self) -> None:
        """Close an idle connection now, and a busy one after the request in progress."""
        self._stopping = True
        if self._idle:
            self._writer.close()
            self._reader.feed_eof()

    async def serve_requests(self) -> None:
        while first_byte := await self._read_first_byte():
            self._idle = False
            if not await self._handle_request(first_byte):
                return
            self._idle = True

    async def close(self) -> None:
        """Send the buffered data, then close the connection.

        Abort the connection if the caller does not read the data within the send timeout.
        """
        try:
            async with asyncio.timeout(self._limits.send_timeout_seconds):
                self._writer.close()
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        self.closed.set_result(None)

    async def _read_first_byte(self) -> bytes:
        try:
            async with asyncio.timeout(self._limits.idle_timeout_seconds):
                return await self._reader.read(1)
        except TimeoutError:
            return b""

    async def _handle_request(self, first_byte: bytes) -> bool:
        """Read one request and send its response. Return whether the connection stays open for another request."""
        try:
            head = await self._read_head(first_byte)
            body = await self._read_body(head)
            response = await self._server.handle(head, body, self._reader.disconnected)
        except BadRequest as error:
            response = error_response(error.status, "BadRequest", error.message)
            await self._send(serialize_response(response, 0))
            await self._discard_input()
            return False
        keep_alive_seconds = int(self._limits.idle_timeout_seconds) if head.keep_alive and not self._stopping else 0
        await self._send(serialize_response(response, keep_alive_seconds, with_body=head.method != "HEAD"))
        return keep_alive_seconds > 0

    async def _read_head(self, first_byte: bytes) -> RequestHead:
        try:
            async with asyncio.timeout(self._limits.head_timeout_seconds):
                head = await read_head(self._reader, first_byte, self._limits.max_head_bytes)
        except TimeoutError:
            raise BadRequest(408, "the request head did not arrive before the timeout") from None
        self._server.check_route(head)
        return head

    async def _read_body(self, head: RequestHead) -> bytes:
        if head.expects_continue and head.body_length <= self._limits.max_body_bytes:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.body_timeout_seconds):
                return await read_body(self._reader, head.body_length, self._limits.max_body_bytes)
        except TimeoutError:
            raise BadRequest(408, "the request body did not arrive before the timeout") from None

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        async with asyncio.timeout(self._limits.send_timeout_seconds):
            for start in range(0, len(view), READ_SIZE_BYTES):
                self._writer.write(view[start : start + READ_SIZE_BYTES])
                await self._writer.drain()

    async def _discard_input(self) -> None:
        """Read and discard the data that the caller still sends, for a short time.

        A caller that is still sending reads the error response only if its writes do not fail.
        """
        with contextlib.suppress(TimeoutError, OSError):
            self._writer.write_eof()
            async with asyncio.timeout(self._limits.discard_timeout_seconds):
                while await self._reader.read(READ_SIZE_BYTES):
                    pass


def _is_disconnected(connection: socket.socket) -> bool:
    """Return whether the caller closed the socket.

    A caller that closed only its sending side still waits for its response.
    """
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))
