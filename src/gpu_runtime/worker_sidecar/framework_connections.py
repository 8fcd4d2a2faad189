"""Connections to the framework's unix socket: one call at a time on each, and a rest between two calls where that is
known to be safe."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from gpu_runtime.worker_sidecar.http_response_parser import (
    IncompleteResponse,
    MalformedResponse,
    ParsedResponse,
    ResponseParser,
)

IDLE_TIMEOUT_SECONDS = 5.0
"""How long a connection rests here."""


class FrameworkUnreachable(Exception):
    """There is no connection to be had, so nothing was sent."""


class FrameworkConnectionPool:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._idle: deque[tuple[float, _FrameworkConnection]] = deque()
        """The one that came last is used first; the others end."""
        self._idle_timer: asyncio.TimerHandle | None = None

    async def round_trip(
        self, request: bytes, limit_of: Callable[[int], int], kept: Callable[[ParsedResponse], bool]
    ) -> ParsedResponse:
        """What the framework answers. Unreachable, Lost or Garbled where it does not.

        `kept` says, from the answer, whether the framework will keep the connection.
        """
        connection = self._pop_idle() or await self._open()
        try:
            answer = await connection.round_trip(request, limit_of)
        except BaseException:
            connection.abort()
            raise
        if kept(answer) and answer.reusable:
            self._put_idle(connection)
        else:
            connection.abort()
        return answer

    def close_idle(self) -> None:
        """End those that rest."""
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
            _, made = await asyncio.get_running_loop().create_unix_connection(_FrameworkConnection, self._socket)
        except OSError as error:
            raise FrameworkUnreachable(error.strerror or str(error)) from error
        return made

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


class _FrameworkConnection(asyncio.Protocol):
    def __init__(self) -> None:
        self.closed = False
        self._transport: asyncio.Transport
        self._parser: ResponseParser | None = None
        self._response: asyncio.Future[ParsedResponse]

    async def round_trip(self, request: bytes, limit_of: Callable[[int], int]) -> ParsedResponse:
        if self.closed:
            raise IncompleteResponse("the framework closed it at once")
        self._parser = ResponseParser(limit_of)
        self._response = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._response

    def abort(self) -> None:
        """At once: what is not sent yet, nobody wants any more."""
        self.closed = True
        self._parser = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._parser is None:  # nothing was asked, so nobody knows what this answers
            self.abort()
        else:
            self._feed(data)

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
        """Go on with more bytes, or with the knowledge that there are none."""
        if self._parser is None:
            return
        try:
            answer = self._parser.feed_eof() if data is None else self._parser.feed(data)
        except (MalformedResponse, IncompleteResponse) as error:
            self._fail(error)
            return
        if answer is not None:
            self._parser = None
            if not self._response.done():  # whoever waited was cancelled
                self._response.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._parser is not None and not self._response.done():
            self._response.set_exception(error)
            self._response.exception()  # whoever waits gets it all the same; whoever was cancelled left no complaint
        self._parser = None
