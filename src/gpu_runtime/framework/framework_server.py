"""The HTTP server: connections, the two paths, and an end that loses no answer."""

import asyncio
import contextlib
import select
import socket
from urllib.parse import unquote

from gpu_runtime.framework.errors import Unreadable
from gpu_runtime.framework.executor import Calls
from gpu_runtime.framework.http1 import READ_SIZE, Head, read_body, read_head, written
from gpu_runtime.framework.request import request_of
from gpu_runtime.framework.responses import Answer, answer_to_caller, problem
from gpu_runtime.framework.settings import Limits, Settings
from gpu_runtime.framework.stderr_log import say_traceback


class Incoming(asyncio.StreamReader):
    """A reader that also tells, while nobody reads, that the caller is gone."""

    def __init__(self, limit: int) -> None:
        loop = asyncio.get_running_loop()
        super().__init__(limit, loop)
        self.hung_up: asyncio.Future[None] = loop.create_future()
        self._socket: socket.socket | None = None

    def set_transport(self, transport: asyncio.BaseTransport) -> None:
        super().set_transport(transport)
        self._socket = transport.get_extra_info("socket")

    def feed_eof(self) -> None:
        super().feed_eof()
        if not self.hung_up.done() and self._socket is not None and _is_gone(self._socket):
            self.hung_up.set_result(None)


class Server:
    """Belongs to the running event loop."""

    def __init__(self, settings: Settings, calls: Calls) -> None:
        self._limits = settings.limits
        self._paths = {_plain(settings.invoke_path): "POST", _plain(settings.health_path): "GET"}
        self._invoke = _plain(settings.invoke_path)
        self._calls = calls
        self._connections: set[Connection] = set()
        self._stopping = False

    def protocol(self) -> asyncio.StreamReaderProtocol:
        """For a connection that was just accepted."""
        reader = Incoming(self._limits.head_bytes)
        return asyncio.StreamReaderProtocol(reader, lambda _, writer: self._serve(reader, writer))

    async def finish(self) -> None:
        """Close the connections without a request, and wait until the others have their answers."""
        self._stopping = True
        for connection in tuple(self._connections):
            connection.stop()
        if self._connections:
            await asyncio.wait({connection.ended for connection in self._connections})

    async def _serve(self, reader: Incoming, writer: asyncio.StreamWriter) -> None:
        connection = Connection(reader, writer, self._limits, self)
        self._connections.add(connection)
        try:
            if not self._stopping:
                await connection.converse()
        except (ConnectionError, TimeoutError):
            pass  # the caller left or reads nothing
        except Exception as error:  # noqa: BLE001 - one connection's fault is not that of the others
            say_traceback("a connection failed; this is a fault of the framework", error)
        finally:
            await connection.close()
            self._connections.discard(connection)

    def admit(self, head: Head) -> None:
        """Refuse what is not one of the two paths, before its body is read."""
        method = self._paths.get(self._path(head))
        if method is None:
            raise Unreadable(404, f"there is nothing at this path; there are {' and '.join(self._paths)}")
        if head.method != method and not (head.method == "HEAD" and method == "GET"):
            raise Unreadable(405, f"this path answers {method}")

    async def answer(self, head: Head, body: bytes, hung_up: asyncio.Future[None]) -> Answer:
        if self._path(head) == self._invoke:
            return await self._calls.answer(request_of(head.headers, body), hung_up)
        if self._calls.stuck:
            return problem(503, "Stuck", "every slot is held by a handler that is past its deadline")
        return Answer(200, "application/json", b'{"status":"ok"}')

    def _path(self, head: Head) -> str:
        target = _plain(head.target)
        return target if target in self._paths else _plain(head.target.partition("?")[0])


class Connection:
    """One request after another, until either side has enough."""

    def __init__(self, reader: Incoming, writer: asyncio.StreamWriter, limits: Limits, server: Server) -> None:
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._reader = reader
        self._writer = writer
        self._limits = limits
        self._server = server
        self._idle = True
        self._last = False

    def stop(self) -> None:
        """The request that has begun is the last one."""
        self._last = True
        if self._idle:
            self._writer.close()
            self._reader.feed_eof()

    async def converse(self) -> None:
        while begun := await self._first_byte():
            self._idle = False
            if not await self._exchange(begun):
                return
            self._idle = True

    async def close(self) -> None:
        """What was written reaches the caller, unless it does not read."""
        try:
            async with asyncio.timeout(self._limits.send_seconds):
                self._writer.close()
                await self._writer.wait_closed()
        except (OSError, TimeoutError):
            self._writer.transport.abort()
        self.ended.set_result(None)

    async def _first_byte(self) -> bytes:
        try:
            async with asyncio.timeout(self._limits.idle_seconds):
                return await self._reader.read(1)
        except TimeoutError:
            return b""

    async def _exchange(self, begun: bytes) -> bool:
        """Read one request and answer it. Gives whether another one may follow."""
        try:
            head = await self._head(begun)
            body = await self._body(head)
            answer = await self._server.answer(head, body, self._reader.hung_up)
        except Unreadable as error:
            await self._send(written(answer_to_caller(error), 0))
            await self._linger()
            return False
        kept_seconds = int(self._limits.idle_seconds) if head.keep_alive and not self._last else 0
        await self._send(written(answer, kept_seconds, with_body=head.method != "HEAD"))
        return kept_seconds > 0

    async def _head(self, begun: bytes) -> Head:
        try:
            async with asyncio.timeout(self._limits.head_seconds):
                head = await read_head(self._reader, begun, self._limits.head_bytes)
        except TimeoutError:
            raise Unreadable(408, "the request's head took too long") from None
        self._server.admit(head)
        return head

    async def _body(self, head: Head) -> bytes:
        if head.expects_continue and head.length <= self._limits.body_bytes:
            self._writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        try:
            async with asyncio.timeout(self._limits.body_seconds):
                return await read_body(self._reader, head.length, self._limits.body_bytes)
        except TimeoutError:
            raise Unreadable(408, "the request's body took too long") from None

    async def _send(self, data: bytes) -> None:
        view = memoryview(data)
        async with asyncio.timeout(self._limits.send_seconds):
            for start in range(0, len(view), READ_SIZE):
                self._writer.write(view[start : start + READ_SIZE])
                await self._writer.drain()

    async def _linger(self) -> None:
        """A caller that is still sending reads the refusal only if it can go on sending for a moment."""
        with contextlib.suppress(TimeoutError, OSError):
            self._writer.write_eof()
            async with asyncio.timeout(self._limits.linger_seconds):
                while await self._reader.read(READ_SIZE):
                    pass


def _is_gone(connection: socket.socket) -> bool:
    """Whether the caller closed the socket; one that only said it sends no more still waits for its answer."""
    poll = select.poll()
    poll.register(connection, 0)
    return bool(poll.poll(0))


def _plain(path: str) -> str:
    return unquote(path)
