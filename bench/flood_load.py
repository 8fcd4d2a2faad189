"""Sends a flood of requests and keeps half-open connections, with little CPU time of its own.

    python -m bench.flood_load < job.json > result.json

The requests use raw connections: an HTTP client library would need more CPU time than the server, and the benchmark
would measure the load generator.
"""

import asyncio
import gc
import sys
import time
from collections import Counter
from contextlib import suppress
from itertools import count, cycle
from typing import cast
from urllib.parse import urlsplit

import msgspec
import uvloop

from bench.load_windows import RequestTemplate, Window, sleep_until

TICK_SECONDS = 0.005
"""The generator sends all requests that are due once in this time."""
MAX_CONNECTIONS = 200
REOPEN_SECONDS = 0.5
"""The time after which a half-open connection that the server closed is opened again."""
HALF_OPEN_HEAD = b"GET /api/v1/gpu-units HTTP/1.1\r\nHost: x\r\n"
HALF_OPENS_PER_TICK = 10
DRAIN_SECONDS = 0.2


class FloodJob(msgspec.Struct):
    url: str
    token: str
    """Empty for requests without a token."""
    requests: list[RequestTemplate]
    """The requests, in round-robin order."""
    rate: float
    """Requests per second."""
    windows: list[Window]
    """The windows in which the flood runs."""
    half_open_connections: int = 0


class FloodWindowResult(msgspec.Struct):
    statuses: dict[int, int]
    """The number of responses by status."""
    unsent: int
    """The requests that were due while all connections waited for a response."""
    closed: int
    """The connections that the server closed without a response, or that it did not accept."""
    open_half_open: int
    """The half-open connections at the end of the window."""
    cpu_seconds: float


class FloodResult(msgspec.Struct):
    windows: list[FloodWindowResult]

    def statuses(self) -> Counter[int]:
        return sum((Counter(each.statuses) for each in self.windows), Counter())


class FloodConnection(asyncio.Protocol):
    """A connection that sends one request at a time. It reads only the status and the length of a response."""

    def __init__(self, pool: "ConnectionPool") -> None:
        self._pool = pool
        self._received = b""
        self._request = b""
        """The request that waits for its response."""
        self._transport: asyncio.WriteTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.WriteTransport", transport)

    def send(self, request: bytes) -> None:
        if self._transport:
            self._request = request
            self._transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._received += data
        head_end = self._received.find(b"\r\n\r\n")
        if head_end < 0:
            return
        head = self._received[:head_end].lower()
        length = int(head.partition(b"content-length: ")[2].partition(b"\r\n")[0] or 0)
        if len(self._received) < head_end + 4 + length:
            return
        self._received, self._request = b"", b""
        self._pool.statuses[int(head[9:12])] += 1
        if b"connection: close" in head:
            self.close()
        else:
            self._pool.idle.append(self)

    def connection_lost(self, _error: Exception | None) -> None:
        self._pool.closed += bool(self._request)
        self._pool.size -= 1
        with suppress(ValueError):
            self._pool.idle.remove(self)

    def close(self) -> None:
        if self._transport:
            self._transport.close()


class ConnectionPool:
    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self._opening: set[asyncio.Task[None]] = set()
        self.statuses: Counter[int] = Counter()
        self.size = 0
        self.closed = 0
        self.idle: list[FloodConnection] = []

    def send(self, request: bytes) -> bool:
        """Send a request on an idle or a new connection. Return False if all connections wait for responses."""
        if self.idle:
            self.idle.pop().send(request)
        elif self.size < MAX_CONNECTIONS:
            self.size += 1
            task = asyncio.create_task(self._open_and_send(request))
            self._opening.add(task)
            task.add_done_callback(self._opening.discard)
        else:
            return False
        return True

    async def _open_and_send(self, request: bytes) -> None:
        try:
            _, connection = await asyncio.get_running_loop().create_connection(
                lambda: FloodConnection(self), *self._address
            )
        except OSError:
            self.size -= 1
            self.closed += 1
        else:
            connection.send(request)


class HalfOpenConnections:
    """Keeps connections with an incomplete head. It opens a connection again when the server closes it."""

    def __init__(self, host: str, port: int, number: int) -> None:
        self._address, self._number = (host, port), number
        self._tasks: list[asyncio.Task[None]] = []
        self.open = 0

    def open_some(self) -> None:
        """Open a part of the connections, so that the generator does not delay the flood of requests."""
        for _ in range(min(HALF_OPENS_PER_TICK, self._number - len(self._tasks))):
            self._tasks.append(asyncio.create_task(self._keep_one()))

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _keep_one(self) -> None:
        while True:
            with suppress(OSError):
                reader, writer = await asyncio.open_connection(*self._address)
                self.open += 1
                try:
                    writer.write(HALF_OPEN_HEAD)
                    await reader.read()
                finally:
                    self.open -= 1
                    writer.close()
            await asyncio.sleep(REOPEN_SECONDS)


class Flood:
    def __init__(self, job: FloodJob) -> None:
        address = urlsplit(job.url)
        self._job, self._host, self._port = job, address.hostname or "", address.port or 80
        self._templates, self._numbers = cycle(job.requests), count()

    async def run(self) -> FloodResult:
        return FloodResult([await self._run_window(window) for window in self._job.windows])

    async def _run_window(self, window: Window) -> FloodWindowResult:
        await sleep_until(window.starts_at)
        cpu, sent, unsent = time.process_time(), 0, 0
        pool = ConnectionPool(self._host, self._port)
        half_open = HalfOpenConnections(self._host, self._port, self._job.half_open_connections)
        while (now := time.monotonic()) < window.ends_at:
            half_open.open_some()
            due = int((now - window.starts_at) * self._job.rate)
            unsent += sum(not pool.send(self._next_request()) for _ in range(due - sent))
            sent = due
            await asyncio.sleep(TICK_SECONDS)
        cpu, still_open = time.process_time() - cpu, half_open.open
        await half_open.close()
        await asyncio.sleep(DRAIN_SECONDS)  # responses to the last requests
        result = FloodWindowResult(dict(pool.statuses), unsent, pool.closed, still_open, cpu)
        for connection in tuple(pool.idle):
            connection.close()
        return result

    def _next_request(self) -> bytes:
        template, number = next(self._templates), next(self._numbers)
        body = template.body_of(number)
        token = f"Authorization: Bearer {self._job.token}\r\n" if self._job.token else ""
        content = f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n" if body else ""
        head = f"{template.method} {template.path_of(number)} HTTP/1.1\r\nHost: {self._host}\r\n{token}{content}\r\n"
        return head.encode() + body


if __name__ == "__main__":
    gc.disable()  # fewer pauses in the flood
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=FloodJob)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        sys.stdout.buffer.write(msgspec.json.encode(runner.run(Flood(job).run())))
