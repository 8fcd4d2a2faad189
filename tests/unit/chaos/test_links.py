"""Links carry what they are given, and fail as networks do."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.chaos.links import Link, link


@asynccontextmanager
async def echoing() -> AsyncIterator[int]:
    echoes: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    def accept(*both: Any) -> None:
        echoes.append(asyncio.create_task(echo(*both)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*echoes), 30)


@pytest.fixture
async def carried() -> AsyncIterator[Link]:
    async with echoing() as port, link(port) as made:
        yield made


@asynccontextmanager
async def dialled(carried: Link) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", carried.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def heard(reader: asyncio.StreamReader, within: float = 30) -> bytes:
    """Nothing, also where the connection was reset."""
    try:
        return await asyncio.wait_for(reader.read(1), within)
    except ConnectionError:
        return b""


async def test_what_is_sent_arrives_and_so_does_the_end(carried: Link) -> None:
    async with dialled(carried) as (reader, writer):
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 30) == b"hello"


async def test_what_is_sent_into_silence_arrives_when_it_is_over(carried: Link) -> None:
    async with dialled(carried) as (reader, writer):
        writer.write(b"a")
        assert await heard(reader) == b"a"
        with carried.silent():
            with carried.silent():
                writer.write(b"b")
            with pytest.raises(TimeoutError):
                await heard(reader, 0.2)
        assert await heard(reader) == b"b"


async def test_who_connects_into_silence_hears_nothing_until_it_is_over(carried: Link) -> None:
    with carried.silent():
        async with dialled(carried) as (reader, writer):
            writer.write(b"a")
            with pytest.raises(TimeoutError):
                await heard(reader, 0.2)


async def test_a_cut_ends_connections_and_lets_nobody_in_until_it_is_over(carried: Link) -> None:
    async with dialled(carried) as (reader, writer):
        writer.write(b"a")
        assert await heard(reader) == b"a"
        with carried.cut():
            assert await heard(reader) == b""
            async with dialled(carried) as (refused, _):
                assert await heard(refused) == b""
    async with dialled(carried) as (reader, writer):
        writer.write(b"b")
        assert await heard(reader) == b"b"
