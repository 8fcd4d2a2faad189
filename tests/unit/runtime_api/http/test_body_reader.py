"""How long a client may take for a body, and when the API asks for the body."""

import asyncio

import pytest

from gpu_runtime.runtime_api.http import body_reader
from gpu_runtime.runtime_api.http.body_reader import allowed_seconds
from gpu_runtime.runtime_api.http.route import Scope
from tests.unit.runtime_api.http.http_harness import AppOptions, FixedAuthenticator, SampleBody, make_route, running_app

POST = make_route("POST", "/items", body=SampleBody, max_body_bytes=1000)
HEAD = "POST /items HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n"


def test_client_with_the_minimum_rate_always_has_the_grace_period_left() -> None:
    for seconds in (0, 1, 24):
        received = seconds * body_reader.MIN_BODY_BYTES_PER_SECOND
        assert allowed_seconds(received) == seconds + body_reader.BODY_GRACE_SECONDS


async def exchange(port: int, *parts: str) -> bytes:
    """Send the parts, the second one after the server has sent something. Return everything that the server sent."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(parts[0].encode())
        received = await reader.readuntil(b"\r\n\r\n")
        for part in parts[1:]:
            writer.write(part.encode())
        return received + await reader.read()
    finally:
        writer.close()


async def test_slow_body_is_answered_408(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(body_reader, "BODY_GRACE_SECONDS", 0.1)
    async with running_app([POST]) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(f"{HEAD}Content-Length: 20\r\n\r\n{{".encode())
        received = await reader.readuntil(b"}}")
        writer.close()
    assert received.startswith(b"HTTP/1.1 408 ")
    assert b'"code":"slow_request"' in received


async def test_client_that_waits_for_100_continue_gets_it_after_the_request_is_admitted() -> None:
    head = f"{HEAD}Expect: 100-continue\r\nConnection: close\r\nContent-Length: 2\r\n\r\n"
    async with running_app([POST]) as edge:
        received = await exchange(edge.port, head, "{}")
    assert received.startswith(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\n")


REJECTED = {
    "without a token": ("Content-Length: 2\r\n", b"401"),
    "with a body that is too large": ("Authorization: Bearer good\r\nContent-Length: 2000\r\n", b"413"),
}


@pytest.mark.parametrize(("header", "status"), REJECTED.values(), ids=REJECTED)
async def test_rejected_client_gets_no_100_continue(header: str, status: bytes) -> None:
    options = AppOptions(authenticator=FixedAuthenticator(Scope.RUNTIME))
    async with running_app([POST], options) as edge:
        reader, writer = await asyncio.open_connection("127.0.0.1", edge.port)
        writer.write(f"{HEAD}Expect: 100-continue\r\n{header}\r\n".encode())
        received = await reader.readuntil(b"\r\n\r\n")
        writer.close()
    assert received.startswith(b"HTTP/1.1 " + status)
    assert b"Connection: close\r\n" in received
