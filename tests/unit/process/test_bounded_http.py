"""The timers of HTTP connections: slow clients are disconnected, and waiting for a slow handler is not slow."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

import pytest
from aiohttp import web

from gpu_runtime.process import bounded_http
from gpu_runtime.process.health_server import serve_app
from gpu_runtime.process.shared_settings import BindAddressSettings

GET = b"GET /%b HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture(autouse=True)
def short_timeouts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bounded_http, "HEAD_TIMEOUT_SECONDS", 0.3)
    monkeypatch.setattr(bounded_http, "IDLE_TIMEOUT_SECONDS", 0.6)
    monkeypatch.setattr(bounded_http, "STALL_TIMEOUT_SECONDS", 0.5)


async def slow(_request: web.Request) -> web.Response:
    await asyncio.sleep(1.2)
    return web.Response(text="slow")


async def large(_request: web.Request) -> web.Response:
    return web.Response(body=b"x" * 20_000_000)


async def fast(_request: web.Request) -> web.Response:
    return web.Response(text="fast")


@asynccontextmanager
async def connection() -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    app = web.Application()
    app.add_routes([web.get("/slow", slow), web.get("/large", large), web.get("/fast", fast)])
    async with serve_app(app, BindAddressSettings(bind_address="127.0.0.1:0"), shutdown_timeout=1) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        try:
            yield reader, writer
        finally:
            writer.close()


async def read_response(reader: asyncio.StreamReader, text: bytes) -> None:
    assert (await reader.readline()).startswith(b"HTTP/1.1 200 ")
    assert (await reader.readuntil(text)).endswith(text)


async def seconds_until_eof(reader: asyncio.StreamReader) -> float:
    started = asyncio.get_running_loop().time()
    with suppress(ConnectionError):
        assert await reader.read() == b""
    return asyncio.get_running_loop().time() - started


async def test_connection_without_a_request_is_closed_after_the_head_timeout() -> None:
    async with connection() as (reader, _):
        assert 0.2 < await seconds_until_eof(reader) < 0.55


async def test_handler_may_take_longer_than_every_timeout_of_the_connection() -> None:
    async with connection() as (reader, writer):
        writer.write(GET % b"slow")
        await read_response(reader, b"slow")


async def test_idle_connection_is_closed_after_the_idle_timeout() -> None:
    async with connection() as (reader, writer):
        writer.write(GET % b"fast")
        await read_response(reader, b"fast")
        assert 0.5 < await seconds_until_eof(reader) < 2


async def test_incomplete_head_of_a_later_request_is_closed_after_the_head_timeout() -> None:
    async with connection() as (reader, writer):
        writer.write(GET % b"fast")
        await read_response(reader, b"fast")
        writer.write(b"GET /f")
        assert 0.2 < await seconds_until_eof(reader) < 0.55


async def test_pipelined_requests_are_answered() -> None:
    async with connection() as (reader, writer):
        writer.write(GET % b"slow" + GET % b"fast")
        await read_response(reader, b"slow")
        await read_response(reader, b"fast")


async def test_client_that_does_not_read_its_response_is_disconnected() -> None:
    async with connection() as (reader, writer):
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        writer.write(GET % b"large")
        await asyncio.sleep(1.5)
        writer.transport.resume_reading()  # type: ignore[attr-defined]
        received = b""
        with suppress(ConnectionError):
            received = await reader.read()
        assert len(received) < 20_000_000
