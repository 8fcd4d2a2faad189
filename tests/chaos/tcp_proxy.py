"""The ways between the processes: TCP that can fall silent or break, as networks do."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

CHUNK_BYTES = 1 << 16
CONNECTION_ERRORS = (OSError, RuntimeError)
"""What is met where the other side is no longer there; the second one is the event loop's own word for it."""


@dataclass
class TcpProxy:
    """From one process to another one, or to several that do the same, in turn."""

    upstream_ports: Sequence[int]
    """Where those listen that it leads to."""
    port: int = 0
    """Where it begins."""
    _flowing: asyncio.Event = field(default_factory=asyncio.Event)
    _stall_count: int = 0
    _disconnect_count: int = 0
    _writers: set[asyncio.StreamWriter] = field(default_factory=set)
    _connection_tasks: set["asyncio.Task[None]"] = field(default_factory=set)
    _upstream_counter: "count[int]" = field(default_factory=count)

    @contextmanager
    def stalled(self) -> Iterator[None]:
        """Nothing arrives any more. Who sends does not notice; what was sent arrives when the silence is over."""
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
        """All connections break, and nobody gets a new one."""
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
            there, back = await self._connect_upstream()
            with self._tracked(back):
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

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
        refused: OSError = ConnectionRefusedError()
        for _ in self.upstream_ports:
            try:
                return await asyncio.open_connection(
                    "127.0.0.1", self.upstream_ports[next(self._upstream_counter) % len(self.upstream_ports)]
                )
            except OSError as error:
                refused = error
        raise refused

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until the source has ended, which the sink is told as well."""
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
    made = TcpProxy(ports)
    server = await asyncio.start_server(made.accept, "127.0.0.1", 0)
    made.start(server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        server.close()
        await made.stop()
