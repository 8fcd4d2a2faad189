"""Malformed and stalled HTTP: the caller gets a 4xx response, and the next valid request works."""

import asyncio
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_runtime.framework.entrypoint import serve_until
from gpu_runtime.framework.request import Request
from gpu_runtime.framework.settings import FrameworkServerLimits, FrameworkServerSettings
from localcluster.supervisor_client import wait_until
from tests.integration.framework.framework_process import (
    CHUNKED_REQUEST,
    CLOSING_REQUEST,
    ECHO_SOURCE,
    STATUS_LINE_PATTERN,
    VALID_REQUEST,
    FrameworkProcess,
    connect_unix,
    exchange,
    is_listening,
    running_framework,
)


@pytest.fixture(scope="module")
def framework(module_socket_dir: Path) -> Iterator[FrameworkProcess]:
    with running_framework(
        ECHO_SOURCE, module_socket_dir, GPU_RUNTIME_CONCURRENCY="4", GPU_RUNTIME_MAX_BODY_BYTES="100000"
    ) as running:
        yield running


def statuses(response: bytes) -> list[int]:
    return [int(status) for status in STATUS_LINE_PATTERN.findall(response)]


REJECTED_REQUESTS: list[tuple[str, bytes, int]] = [
    ("not HTTP", b"\x16\x03\x01\x02\x00\x01\r\n", 400),
    ("an empty line", b"\r\n" + VALID_REQUEST, 400),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("HTTP/0.9", b"GET /healthz\r\n", 400),
    ("a target without a slash", b"POST invoke HTTP/1.1\r\n\r\n", 400),
    ("a bare line feed", VALID_REQUEST.replace(b"\r\n", b"\n"), 400),
    ("a folded header", b"GET /healthz HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    ("a space before the colon", b"GET /healthz HTTP/1.1\r\nA : b\r\n\r\n", 400),
    ("a NUL in a header", b"GET /healthz HTTP/1.1\r\nA: \0\r\n\r\n", 400),
    ("a carriage return in a header", b"GET /healthz HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
    ("a negative Content-Length", VALID_REQUEST.replace(b"7\r", b"-7\r"), 400),
    ("a Content-Length with a plus sign", VALID_REQUEST.replace(b"7\r", b"+7\r"), 400),
    ("two Content-Lengths", VALID_REQUEST.replace(b"Host: x", b"Content-Length: 7"), 400),
    ("Content-Length and chunks", VALID_REQUEST.replace(b"Host: x", b"Transfer-Encoding: chunked"), 400),
    ("another transfer coding", CHUNKED_REQUEST.replace(b"chunked", b"gzip, chunked"), 400),
    ("chunks in HTTP/1.0", CHUNKED_REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    ("a chunk longer than its size", CHUNKED_REQUEST.replace(b"3;x", b"2;x"), 400),
    ("a chunk size with a sign", CHUNKED_REQUEST.replace(b"3;x", b"+3;x"), 400),
    ("a huge chunk size", CHUNKED_REQUEST.replace(b"3;x", b"F" * 40 + b";x"), 400),
    ("a malformed trailer", CHUNKED_REQUEST.replace(b"Trailer: 1", b"Trailer"), 400),
    ("a Content-Length above the limit", VALID_REQUEST.replace(b"7\r", b"100001\r") + bytes(100_000), 413),
    ("a chunk above the limit", CHUNKED_REQUEST.replace(b"3;x", b"FFFFFF;x"), 413),
    ("chunks above the limit", CHUNKED_REQUEST.replace(b"0\r\nT", (b"8000\r\n" + bytes(0x8000) + b"\r\n") * 4), 413),
    ("a head above the limit", b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 140_000, 431),
    ("headers above the limit", b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 30_000 + b"\r\n", 431),
    ("an unknown path", VALID_REQUEST.replace(b"/invoke", b"/other"), 404),
    ("a wrong method", b"GET /invoke HTTP/1.1\r\n\r\n", 405),
    ("POST to the health path", VALID_REQUEST.replace(b"/invoke", b"/healthz"), 405),
    ("a payload that is not JSON", VALID_REQUEST.replace(b"{", b"["), 400),
]


@pytest.mark.parametrize(
    ("data", "status"), [row[1:] for row in REJECTED_REQUESTS], ids=[row[0] for row in REJECTED_REQUESTS]
)
def test_malformed_request_is_rejected_and_the_connection_closed(
    framework: FrameworkProcess, data: bytes, status: int
) -> None:
    """The caller keeps the connection open. The framework closes it without waiting for more input."""
    response = exchange(framework.socket, data)
    assert statuses(response) == [status]
    assert b'{"error": {"type": "BadRequest"' in response
    assert b"Connection: close" in response


def test_client_that_sends_the_whole_body_reads_the_413(framework: FrameworkProcess) -> None:
    reply = framework.request("POST", "/invoke", bytes(3_000_000), {"Content-Type": "a/b"})
    assert (reply.status, "limit of 100000 bytes" in reply.error[1]) == (413, True)


def test_incomplete_request_is_answered_400(framework: FrameworkProcess) -> None:
    for data in (VALID_REQUEST[:-1], CHUNKED_REQUEST[:-2], VALID_REQUEST[:20]):
        assert statuses(exchange(framework.socket, data, half_close=True)) == [400]


def test_connection_serves_several_requests(framework: FrameworkProcess) -> None:
    assert statuses(exchange(framework.socket, VALID_REQUEST + CHUNKED_REQUEST + VALID_REQUEST + CLOSING_REQUEST)) == [
        200,
        200,
        200,
        200,
    ]


def test_http_1_0_client_gets_its_response_and_close(framework: FrameworkProcess) -> None:
    assert statuses(exchange(framework.socket, VALID_REQUEST.replace(b"HTTP/1.1", b"HTTP/1.0"))) == [200]


def test_expect_100_continue_is_answered(framework: FrameworkProcess) -> None:
    expecting = VALID_REQUEST.replace(b"Host: x", b"Expect: 100-continue")
    assert statuses(exchange(framework.socket, expecting + CLOSING_REQUEST)) == [100, 200, 200]
    too_large = expecting.replace(b"7\r", b"100001\r")
    assert statuses(exchange(framework.socket, too_large)) == [413]


def test_query_and_percent_encoding_do_not_change_the_path(framework: FrameworkProcess) -> None:
    assert statuses(
        exchange(framework.socket, VALID_REQUEST.replace(b"/invoke", b"/inv%6Fke?a=b") + CLOSING_REQUEST)
    ) == [200, 200]


def echo(request: Request) -> object:
    return request.payload


@asynccontextmanager
async def framework_with_short_timeouts(directory: Path) -> AsyncIterator[str]:
    """Run a framework with short timeouts in this process."""
    limits = FrameworkServerLimits(
        idle_timeout_seconds=1.0,
        head_timeout_seconds=1.0,
        body_timeout_seconds=1.0,
        send_timeout_seconds=1.0,
        discard_timeout_seconds=0.1,
    )
    stopping, path = asyncio.Event(), str(directory / "framework.sock")
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_until(stopping, FrameworkServerSettings(socket_path=path, limits=limits), echo))
        await asyncio.to_thread(wait_until, lambda: is_listening(path), 60, lambda: "the framework does not listen")
        yield path
        stopping.set()


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", []),
        (VALID_REQUEST, [200]),
        (VALID_REQUEST[:30], [408]),
        (VALID_REQUEST[:-3], [408]),
        (CHUNKED_REQUEST[:-20], [408]),
        (VALID_REQUEST[:30] + bytes(3), [408]),
    ],
    ids=["no request", "idle after a request", "in the head", "in the body", "in a chunk", "in a malformed line"],
)
async def test_stalled_request_is_closed_after_the_timeout(socket_dir: Path, data: bytes, expected: list[int]) -> None:
    """The caller waits. The framework closes the connection."""
    async with framework_with_short_timeouts(socket_dir) as path:
        response = await asyncio.wait_for(asyncio.to_thread(exchange, path, data), 60)
    assert statuses(response) == expected


def receive_after_close(path: str, data: bytes) -> bytes:
    """Send a request, and read only after the framework has closed the connection."""
    with connect_unix(path) as connection:
        connection.sendall(data)
        poll = select.poll()
        poll.register(connection, 0)
        assert poll.poll(60_000), "the framework did not close the connection"
        return b"".join(iter(lambda: connection.recv(65536), b""))


async def test_client_that_does_not_read_is_disconnected(socket_dir: Path) -> None:
    large = bytes(5_000_000)
    head = b"POST /invoke HTTP/1.1\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n" % len(large)
    async with framework_with_short_timeouts(socket_dir) as path:
        assert len(await asyncio.to_thread(receive_after_close, path, head + large)) < len(large)
