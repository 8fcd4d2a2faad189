"""Clients without a token cannot keep the connections of a process: slow, silent and half-open connections end."""

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import aiohttp
import pytest

from gpu_runtime.process.health_server import serve_health
from gpu_runtime.process.metrics import new_registry
from gpu_runtime.process.shared_settings import BindAddressSettings
from gpu_runtime.runtime_api.http.route import Scope
from tests.unit.runtime_api.http.http_harness import AppOptions, FixedAuthenticator, SampleBody, make_route, running_app

HEAD = b"POST /items HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer good\r\nContent-Type: application/json\r\n"
POST = make_route("POST", "/items", body=SampleBody)


@pytest.fixture
async def api_port() -> AsyncIterator[int]:
    async with running_app([POST], AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))) as app:
        yield app.port


@pytest.fixture
async def health_port() -> AsyncIterator[int]:
    settings = BindAddressSettings(bind_address="127.0.0.1:0")
    async with serve_health(settings, new_registry("test"), asyncio.Event(), {}) as port:
        yield port


async def seconds_until_closed(port: int, first: bytes, repeated: bytes, at_most: float) -> tuple[float, bytes]:
    """Send the first bytes, and then the others once a second. Return when the server ends the connection."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    started, received = time.monotonic(), b""
    writer.write(first)
    try:
        while time.monotonic() - started < at_most:
            try:
                async with asyncio.timeout(1):
                    part = await reader.read(65536)
            except TimeoutError:
                writer.write(repeated)
                continue
            except ConnectionError:
                break
            received += part
            if not part:
                break
    finally:
        writer.transport.abort()
    return time.monotonic() - started, received


async def test_slow_head_is_disconnected_after_10_seconds(api_port: int, health_port: int) -> None:
    attempts = (
        seconds_until_closed(port, b"GET /healthz HTTP/1.1\r\n", b"X-A: b\r\n", 13) for port in (api_port, health_port)
    )
    for seconds, received in await asyncio.gather(*attempts):
        assert 9 < seconds < 13
        assert received == b""


async def test_slow_body_is_answered_408_after_5_seconds(api_port: int) -> None:
    head = HEAD + b"Content-Length: 1000\r\nConnection: close\r\n\r\n"
    seconds, received = await seconds_until_closed(api_port, head, b" ", 18)
    assert received.startswith(b"HTTP/1.1 408 ")
    assert seconds < 17  # 5 s for the answer, and 10 s in which the server waits for the client to stop


async def test_slow_chunked_body_is_answered_408(api_port: int) -> None:
    head = HEAD + b"Transfer-Encoding: chunked\r\nConnection: close\r\n\r\n"
    _, received = await seconds_until_closed(api_port, head, b"1\r\n \r\n", 8)
    assert received.startswith(b"HTTP/1.1 408 ")


async def test_half_open_connections_of_one_peer_are_capped_and_do_not_keep_out_others(health_port: int) -> None:
    async with AsyncExitStack() as stack:
        readers = []
        for _ in range(300):
            reader, writer = await asyncio.open_connection("127.0.0.1", health_port)
            stack.callback(writer.close)  # keeps the writer: the connection ends with it
            writer.write(b"GET /heal")
            readers.append(reader)
        async with aiohttp.ClientSession() as session, session.get(f"http://127.0.0.1:{health_port}/healthz") as reply:
            assert reply.status == 200
        closed = 0
        for reader in readers[:200]:
            try:
                async with asyncio.timeout(0.2):
                    closed += await reader.read() == b""
            except TimeoutError:
                break
            except ConnectionError:
                closed += 1
        assert closed >= 200
