"""A TCP proxy between two processes that can stall or disconnect, as a network can."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

CHUNK_BYTES = 1 << 16
CONNECTION_ERRORS = (OSError, RuntimeError)
"""The errors of a connection whose other side is closed. The event loop raises RuntimeError for a closed transport."""


@dataclass
class TcpProxy:
    """Forwards connections to one process, or to several replicas in round-robin order."""

    upstream_ports: Sequence[int]
    """The ports of the processes to which the proxy forwards."""
    port: int = 0
    """The port on which the proxy listens."""
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _stall_count: int = 0
    _disconnect_count: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _connection_tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _upstream_counter: "count[int]" = field(default_factory=count)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Deliver no data. The senders do not notice it. Data that is sent during the stall arrives afterwards."""
        self._stall_count += 1
        self._flowing.clear()
        try:
            yield
        finally:
            self._stall_count -= 1
            if not self._stall_count:
                self._flowing.set()

    @contextmanager
    def disconnected(self) -> Iterator[None]:
        """Close all connections and accept no new ones."""
        self._disconnect_count += 1
        self._abort_connections()
        try:
            yield
        finally:
            self._disconnect_count -= 1

    def start(self, port: int) -> None:
        self.port = port
        self._flowing.set()

    async def stop(self) -> None:
        self._abort_connections()
        for task in self._connection_tasks:
            task.cancel()
        await asyncio.gather(*self._connection_tasks, return_exceptions=True)

    def _abort_connections(self) -> None:
        for writer in self._writers:
            writer.transport.abort()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._connection_tasks.add(task)
        task.add_done_callback(self._connection_tasks.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._tracked(writer), suppress(*CONNECTION_ERRORS):
            await self._flowing.wait()
            if self._disconnect_count:
                return
            upstream_reader, upstream_writer = await self._connect_upstream()
            with self._tracked(upstream_writer):
                await asyncio.gather(self._pump(reader, upstream_writer), self._pump(upstream_reader, writer))

    @contextmanager
    def _tracked(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._writers.add(writer)
        try:
            yield
        finally:
            self._writers.discard(writer)
            writer.transport.abort()
            writer.close()

    async def _connect_upstream(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        last_error: OSError = ConnectionRefusedError()
        for _ in self.upstream_ports:
            try:
                return await asyncio.open_connection(
                    "127.0.0.1", self.upstream_ports[next(self._upstream_counter) % len(self.upstream_ports)]
                )
            except OSError as error:
                last_error = error
        raise last_error

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Copy data until the source is closed, then close the same direction of the sink."""
        while True:
            data = await source.read(CHUNK_BYTES)
            await self._flowing.wait()
            if not data:
                break
            sink.write(data)
            await sink.drain()
        with suppress(*CONNECTION_ERRORS):
            sink.write_eof()


@asynccontextmanager
async def running_proxy(*ports: int) -> AsyncIterator[TcpProxy]:
    proxy = TcpProxy(ports)
    server = await asyncio.start_server(proxy.accept, "127.0.0.1", 0)
    proxy.start(server.sockets[0].getsockname()[1])
    try:
        yield proxy
    finally:
        server.close()
        await proxy.stop()
