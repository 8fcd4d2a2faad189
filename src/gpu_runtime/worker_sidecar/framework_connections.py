"""Connections to the framework's unix socket: one call at a time on each, and a rest between two calls where that is
known to be safe."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import cast

from gpu_runtime.worker_sidecar.http_response_parser import Answer, Garbled, Lost, Reading

IDLE_SECONDS = 5.0
"""How long a connection rests here."""


class Unreachable(Exception):
    """There is no connection to be had, so nothing was sent."""


class Connections:
    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._resting: deque[tuple[float, _Connection]] = deque()
        """The one that came last is used first; the others end."""
        self._sweep: asyncio.TimerHandle | None = None

    async def ask(self, request: bytes, limit_of: Callable[[int], int], kept: Callable[[Answer], bool]) -> Answer:
        """What the framework answers. Unreachable, Lost or Garbled where it does not.

        `kept` says, from the answer, whether the framework will keep the connection.
        """
        connection = self._rested() or await self._opened()
        try:
            answer = await connection.ask(request, limit_of)
        except BaseException:
            connection.end()
            raise
        if kept(answer) and answer.reusable:
            self._rest(connection)
        else:
            connection.end()
        return answer

    def close(self) -> None:
        """End those that rest."""
        while self._resting:
            self._resting.pop()[1].end()
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None

    def _rested(self) -> "_Connection | None":
        while self._resting:
            connection = self._resting.pop()[1]
            if not connection.ended:
                return connection
        return None

    async def _opened(self) -> "_Connection":
        try:
            _, made = await asyncio.get_running_loop().create_unix_connection(_Connection, self._socket)
        except OSError as error:
            raise Unreachable(error.strerror or str(error)) from error
        return made

    def _rest(self, connection: "_Connection") -> None:
        loop = asyncio.get_running_loop()
        self._resting.append((loop.time() + IDLE_SECONDS, connection))
        if self._sweep is None:
            self._sweep = loop.call_later(IDLE_SECONDS, self._end_idle)

    def _end_idle(self) -> None:
        loop = asyncio.get_running_loop()
        while self._resting and self._resting[0][0] <= loop.time():
            self._resting.popleft()[1].end()
        self._sweep = loop.call_at(self._resting[0][0], self._end_idle) if self._resting else None


class _Connection(asyncio.Protocol):
    def __init__(self) -> None:
        self.ended = False
        self._transport: asyncio.Transport
        self._reading: Reading | None = None
        self._answer: asyncio.Future[Answer]

    async def ask(self, request: bytes, limit_of: Callable[[int], int]) -> Answer:
        if self.ended:
            raise Lost("the framework closed it at once")
        self._reading = Reading(limit_of)
        self._answer = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._answer

    def end(self) -> None:
        """At once: what is not sent yet, nobody wants any more."""
        self.ended = True
        self._reading = None
        self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        if self._reading is None:  # nothing was asked, so nobody knows what this answers
            self.end()
        else:
            self._read(data)

    def eof_received(self) -> None:
        self.ended = True
        self._read(None)

    def connection_lost(self, error: Exception | None) -> None:
        self.ended = True
        if error is not None:
            self._fail(Lost(str(error)))
        else:
            self._read(None)

    def _read(self, data: bytes | None) -> None:
        """Go on with more bytes, or with the knowledge that there are none."""
        if self._reading is None:
            return
        try:
            answer = self._reading.end() if data is None else self._reading.feed(data)
        except (Garbled, Lost) as error:
            self._fail(error)
            return
        if answer is not None:
            self._reading = None
            if not self._answer.done():  # whoever waited was cancelled
                self._answer.set_result(answer)

    def _fail(self, error: Exception) -> None:
        if self._reading is not None and not self._answer.done():
            self._answer.set_exception(error)
            self._answer.exception()  # whoever waits gets it all the same; whoever was cancelled left no complaint
        self._reading = None
