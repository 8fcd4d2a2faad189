"""A pool of connections to the unix socket of the framework.

A connection carries one call at a time. The pool keeps a connection open between two calls only if the framework has
announced that it keeps idle connections open for long enough.

A connection reads at most `SMALL_RESPONSE_BYTES` of a response before it needs a slot. There are only a few slots, so
the memory for responses is bounded, even if a worker runs a thousand invocations and all responses are large. While a
connection waits for a slot, the framework cannot send more data.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from gpu_runtime.worker_sidecar.framework_response import (
    IncompleteResponse,
    MalformedResponse,
    ParsedResponse,
    ResponseParser,
)

IDLE_TIMEOUT_SECONDS = 5.0
"""Seconds after which the pool closes an idle connection."""


SMALL_RESPONSE_BYTES = 16 * 1024
"""Maximum number of bytes of a response, with its head, that a connection reads without a slot."""
LARGE_RESPONSE_SLOTS = 16
"""Maximum number of large responses in memory. Until its result is published, a response of 512 KiB needs about 4 MiB.
"""


class ResponseSlot:
    """Allows one invocation to have a large response in memory, from the first large read until `release`."""

    def __init__(self, slots: asyncio.Semaphore) -> None:
        self._slots, self._held = slots, False

    async def acquire(self) -> None:
        if not self._held:
            await self._slots.acquire()
            self._held = True

    def release(self) -> None:
        if self._held:
            self._held = False
            self._slots.release()


class FrameworkUnreachable(Exception):
    """The client could not connect to the framework. It sent no data, so the handler was not called."""


class FrameworkConnectionPool:
    """Sends requests over idle or new connections."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._idle: deque[tuple[float, _FrameworkConnection]] = deque()
        """Idle connections and their expiry times, oldest first. The pool reuses the newest, so the others expire."""
        self._idle_timer: asyncio.TimerHandle | None = None

    async def round_trip(
        self,
        request: bytes,
        slot: ResponseSlot,
        limit_of: Callable[[int], int],
        is_kept: Callable[[ParsedResponse], bool],
    ) -> ParsedResponse:
        """Send a request and return the response.

        Raise FrameworkUnreachable, IncompleteResponse or MalformedResponse if there is no valid response. `limit_of`
        returns the maximum number of body bytes for a status. `is_kept` returns whether the framework keeps the
        connection open after this response.
        """
        connection = self._pop_idle() or await self._open()
        try:
            response = await connection.round_trip(request, slot, limit_of)
        except BaseException:
            connection.abort()
            raise
        if is_kept(response) and response.reusable:
            self._put_idle(connection)
        else:
            connection.abort()
        return response

    def close_idle(self) -> None:
        """Close all idle connections."""
        while self._idle:
            self._idle.pop()[1].abort()
        if self._idle_timer is not None:
            self._idle_timer.cancel()
            self._idle_timer = None

    def _pop_idle(self) -> "_FrameworkConnection | None":
        while self._idle:
            connection = self._idle.pop()[1]
            if not connection.closed:
                return connection
        return None

    async def _open(self) -> "_FrameworkConnection":
        try:
            _, connection = await asyncio.get_running_loop().create_unix_connection(_FrameworkConnection, self._socket)
        except OSError as error:
            raise FrameworkUnreachable(error.strerror or str(error)) from error
        return connection

    def _put_idle(self, connection: "_FrameworkConnection") -> None:
        loop = asyncio.get_running_loop()
        self._idle.append((loop.time() + IDLE_TIMEOUT_SECONDS, connection))
        if self._idle_timer is None:
            self._idle_timer = loop.call_later(IDLE_TIMEOUT_SECONDS, self._close_expired)

    def _close_expired(self) -> None:
        loop = asyncio.get_running_loop()
        while self._idle and self._idle[0][0] <= loop.time():
            self._idle.popleft()[1].abort()
        self._idle_timer = loop.call_at(self._idle[0][0], self._close_expired) if self._idle else None


class _FrameworkConnection(asyncio.BufferedProtocol):
    """One connection to the framework. It sends one request at a time and parses the response.

    The protocol has a buffer of its own, because the buffer of the event loop is larger than a small response.
    """

    def __init__(self) -> None:
        self.closed = False
        self._read_buffer = bytearray(SMALL_RESPONSE_BYTES)
        self._read_bytes = 0
        """How many bytes of the response the connection has read."""
        self._paused = False
        """Whether the connection has paused during this response, because the response is large."""
        self._transport: asyncio.Transport
        self._parser: ResponseParser | None = None
        self._response: asyncio.Future[ParsedResponse | None]
        """The response, or None if the connection has paused. Then another future gets the response."""

    async def round_trip(self, request: bytes, slot: ResponseSlot, limit_of: Callable[[int], int]) -> ParsedResponse:
        if self.closed:
            raise IncompleteResponse("the framework closed the new connection immediately")
        self._parser, self._read_bytes, self._paused = ResponseParser(limit_of), 0, False
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        while (response := await self._response) is None:
            await slot.acquire()
            if not self.closed:
                self._transport.resume_reading()
        return response

    def abort(self) -> None:
        """Close the connection without sending buffered data, because the request is finished or cancelled."""
        self.closed = True
        self._parser = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def get_buffer(self, _size_hint: int) -> bytearray:
        return self._read_buffer

    def buffer_updated(self, size: int) -> None:
        data = bytes(memoryview(self._read_buffer)[:size])
        if self._parser is None:  # no request is active: the data must not become the response to the next request
            self.abort()
        else:
            self._feed(data)
            self._pause_if_large(size)

    def _pause_if_large(self, size: int) -> None:
        self._read_bytes += size
        is_large = self._parser is not None and self._read_bytes >= SMALL_RESPONSE_BYTES
        if is_large and not self._paused and not self._response.done():
            self._paused = True
            self._transport.pause_reading()
            paused, self._response = self._response, asyncio.get_running_loop().create_future()
            paused.set_result(None)

    def eof_received(self) -> None:
        self.closed = True
        self._feed(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.closed = True
        if error is not None:
            self._fail(IncompleteResponse(str(error)))
        else:
            self._feed(None)

    def _feed(self, data: bytes | None) -> None:
        """Parse more bytes, or the end of the connection if `data` is None."""
        if self._parser is None:
            return
        try:
            response = self._parser.feed_eof() if data is None else self._parser.feed(data)
        except (MalformedResponse, IncompleteResponse) as error:
            self._fail(error)
            return
        if response is not None:
            self._parser = None
            if not self._response.done():  # the future is done if the call was cancelled
                self._response.set_result(response)

    def _fail(self, error: Exception) -> None:
        if self._parser is not None and not self._response.done():
            self._response.set_exception(error)
            # Mark the exception as retrieved. Otherwise asyncio would log it if the call was cancelled. A call that
            # awaits the future still gets the exception.
            self._response.exception()
        self._parser = None
