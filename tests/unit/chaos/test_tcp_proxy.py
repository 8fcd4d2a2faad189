"""The TCP proxy forwards data, and can stall and disconnect."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from typing import Any

import pytest

from tests.chaos.tcp_proxy import TcpProxy, running_proxy


@asynccontextmanager
async def echo_server() -> AsyncIterator[int]:
    echoes: list[asyncio.Task[None]] = []

    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(ConnectionError):
            while data := await reader.read(100):
                writer.write(data)
        writer.close()

    def accept(*streams: Any) -> None:
        echoes.append(asyncio.create_task(echo(*streams)))

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    try:
        yield server.sockets[0].getsockname()[1]
    finally:
        server.close()
        await asyncio.wait_for(asyncio.gather(*echoes), 30)


@pytest.fixture
async def proxy() -> AsyncIterator[TcpProxy]:
    async with echo_server() as port, running_proxy(port) as running:
        yield running


@asynccontextmanager
async def connected_client(proxy: TcpProxy) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection("127.0.0.1", proxy.port)
    try:
        yield reader, writer
    finally:
        writer.close()


async def receive(reader: asyncio.StreamReader, timeout: float = 30) -> bytes:  # noqa: ASYNC109
    """Return one byte, or no bytes if the connection was closed or reset."""
    try:
        return await asyncio.wait_for(reader.read(1), timeout)
    except ConnectionError:
        return b""


async def test_proxy_forwards_data_and_eof(proxy: TcpProxy) -> None:
    async with connected_client(proxy) as (reader, writer):
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), 30) == b"hello"


async def test_data_sent_during_a_stall_arrives_afterwards(proxy: TcpProxy) -> None:
    async with connected_client(proxy) as (reader, writer):
        writer.write(b"a")
        assert await receive(reader) == b"a"
        with proxy.stalled():
            with proxy.stalled():
                writer.write(b"b")
            with pytest.raises(TimeoutError):
                await receive(reader, 0.2)
        assert await receive(reader) == b"b"


async def test_connection_opened_during_a_stall_receives_nothing(proxy: TcpProxy) -> None:
    with proxy.stalled():
        async with connected_client(proxy) as (reader, writer):
            writer.write(b"a")
            with pytest.raises(TimeoutError):
                await receive(reader, 0.2)


async def test_disconnect_closes_connections_and_refuses_new_ones(proxy: TcpProxy) -> None:
    async with connected_client(proxy) as (reader, writer):
        writer.write(b"a")
        assert await receive(reader) == b"a"
        with proxy.disconnected():
            assert await receive(reader) == b""
            async with connected_client(proxy) as (refused, _):
                assert await receive(refused) == b""
    async with connected_client(proxy) as (reader, writer):
        writer.write(b"b")
        assert await receive(reader) == b"b"
