"""The ways between the processes: TCP that can fall silent or break, as networks do."""

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count

CHUNK = 1 << 16
GONE = (OSError, RuntimeError)
"""What is met where the other side is no longer there; the second one is the event loop's own word for it."""


@dataclass
class Link:
    """From one process to another one, or to several that do the same, in turn."""

    ports: Sequence[int]
    """Where those listen that it leads to."""
    port: int = 0
    """Where it begins."""
    _flows: asyncio.Event = field(default_factory=asyncio.Event)
    _silences: int = 0
    _cuts: int = 0
    _open: set[asyncio.StreamWriter] = field(default_factory=set)
    _carrying: set["asyncio.Task[None]"] = field(default_factory=set)
    _turns: "count[int]" = field(default_factory=count)

    @contextmanager
    def silent(self) -> Iterator[None]:
        """Nothing arrives any more. Who sends does not notice; what was sent arrives when the silence is over."""
        self._silences += 1
        self._flows.clear()
        try:
            yield
        finally:
            self._silences -= 1
            if not self._silences:
                self._flows.set()

    @contextmanager
    def cut(self) -> Iterator[None]:
        """All connections break, and nobody gets a new one."""
        self._cuts += 1
        self._break()
        try:
            yield
        finally:
            self._cuts -= 1

    def begin(self, port: int) -> None:
        self.port = port
        self._flows.set()

    async def end(self) -> None:
        self._break()
        for task in self._carrying:
            task.cancel()
        await asyncio.gather(*self._carrying, return_exceptions=True)

    def _break(self) -> None:
        for writer in self._open:
            writer.transport.abort()

    def carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._carry(reader, writer))
        self._carrying.add(task)
        task.add_done_callback(self._carrying.discard)

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with self._held(writer), suppress(*GONE):
            await self._flows.wait()
            if self._cuts:
                return
            there, back = await self._dialled()
            with self._held(back):
                await asyncio.gather(self._pump(reader, back), self._pump(there, writer))

    @contextmanager
    def _held(self, writer: asyncio.StreamWriter) -> Iterator[None]:
        self._open.add(writer)
        try:
            yield
        finally:
            self._open.discard(writer)
            writer.transport.abort()
            writer.close()

    async def _dialled(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        refused: OSError = ConnectionRefusedError()
        for _ in self.ports:
            try:
                return await asyncio.open_connection("127.0.0.1", self.ports[next(self._turns) % len(self.ports)])
            except OSError as error:
                refused = error
        raise refused

    async def _pump(self, source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
        """Until the source has ended, which the sink is told as well."""
        while True:
            data = await source.read(CHUNK)
            await self._flows.wait()
            if not data:
                break
            sink.write(data)
            await sink.drain()
        with suppress(*GONE):
            sink.write_eof()


@asynccontextmanager
async def link(*ports: int) -> AsyncIterator[Link]:
    made = Link(ports)
    server = await asyncio.start_server(made.carry, "127.0.0.1", 0)
    made.begin(server.sockets[0].getsockname()[1])
    try:
        yield made
    finally:
        server.close()
        await made.end()
