"""The bodies of the requests in flight cannot fill the memory of a replica, and one caller cannot use it all."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

from gpu_runtime.runtime_api.http.route import APIRequest, APIResponse, Caller, Scope
from gpu_runtime.runtime_api.openapi_routes import documented_routes
from tests.unit.runtime_api.http.http_harness import AppOptions, running_app

BODY_BYTES = 700 * 1024


class TokenAuthenticator:
    """The token is the name of the caller."""

    async def authenticate(self, authorization: str | None) -> Caller:
        return Caller((authorization or "").removeprefix("Bearer "), frozenset(Scope))


async def wait(_request: APIRequest[Any, Any]) -> APIResponse:
    await asyncio.Event().wait()
    raise AssertionError


INVOKE = replace(next(each for each in documented_routes() if each.name == "invoke"), handler=wait, path="/invoke")


async def announce(stack: AsyncExitStack, port: int, caller: str) -> asyncio.StreamReader:
    """Send the head of a request and no body."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    stack.callback(writer.close)  # keeps the writer: the connection ends with it
    head = f"POST /invoke HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {caller}\r\nContent-Length: {BODY_BYTES}\r\n\r\n"
    writer.write(head.encode())
    return reader


async def first_line(reader: asyncio.StreamReader, seconds: float) -> bytes:
    try:
        async with asyncio.timeout(seconds):
            return await reader.readline()
    except TimeoutError:
        return b""


async def test_requests_beyond_the_byte_budget_are_answered_429_before_their_bodies_are_read() -> None:
    async with running_app([INVOKE], AppOptions(authenticator=TokenAuthenticator())) as edge, AsyncExitStack() as stack:
        readers = [await announce(stack, edge.port, "greedy") for _ in range(60)]
        lines = await asyncio.gather(*(first_line(each, 1) for each in readers))
        rejected = [each for each in lines if each]
        assert {*rejected} == {b"HTTP/1.1 429 Too Many Requests\r\n"}
        assert 60 - len(rejected) <= 64 * 1024 // 700 // 2 + 1
        refused = next(reader for reader, line in zip(readers, lines, strict=True) if line)
        assert b"Retry-After: 1\r\n" in await refused.readuntil(b"\r\n\r\n")
        other = await announce(stack, edge.port, "other")
        assert await first_line(other, 0.5) == b""  # the API waits for the body of another caller
