"""What the sidecar makes of a framework: a good one, an odd one, and none at all."""

import asyncio
import hashlib
import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.worker_sidecar import framework_connections
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_request import FrameworkRequest
from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    FrameworkFailureKind,
    FrameworkOutcome,
    HandlerFailed,
    HandlerRejected,
    HandlerSucceeded,
    RetryRequested,
    TimedOut,
)
from localcluster.supervisor_client import wait_until
from tests.integration.framework.framework_process import FrameworkProcess, running_command, running_framework

EXAMPLES = Path(__file__).parents[3] / "examples" / "functions"
LIMIT = 12_000_000

FRAMEWORK_SOURCE = """
import asyncio, hashlib, pathlib
from gpu_runtime.framework import Reject, Response, Retry, handler, serve

@handler
async def run(request):
    match request.headers.get("do"):
        case "see":
            return {
                "id": request.invocation_id, "headers": dict(request.headers), "attributes": request.attributes,
                "attempt": request.attempt, "deadline": request.deadline.isoformat(), "payload": request.payload,
            }
        case "digest":
            return hashlib.sha256(request.payload).hexdigest()
        case "send":
            return bytes(request.payload)
        case "fail":
            raise ValueError("the sentence")
        case "reject":
            raise Reject("never")
        case "retry":
            raise Retry("later", after=3)
        case "none":
            return None
        case "hang":
            place = pathlib.Path(request.payload)
            (place / f"began {request.invocation_id}").touch()
            try:
                await asyncio.Event().wait()
            finally:
                (place / f"ended {request.invocation_id}").touch()

serve()
"""


def client(path: str | Path, limit: int = LIMIT) -> FrameworkClient:
    return FrameworkClient(str(path), "/invoke", "/healthz", limit)


def invocation(do: str, payload: Any = None, **changes: Any) -> FrameworkRequest:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    kind = "application/octet-stream" if isinstance(payload, bytes) else "application/json"
    given = {"invocation_id": "inv-1", "body": body, "content_type": kind, "headers": {"Do": do}}
    return FrameworkRequest(**{**given, **changes})


def deadline_in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, 60, lambda: what)


def open_sockets(of: FrameworkProcess) -> int:
    found = 0
    for link in Path(f"/proc/{of.process.pid}/fd").iterdir():
        try:
            found += str(link.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return found


@pytest.mark.parametrize(
    ("do", "payload", "outcome"),
    [
        (
            "digest",
            b"\0\xff",
            HandlerSucceeded(200, "text/plain; charset=utf-8", hashlib.sha256(b"\0\xff").hexdigest().encode()),
        ),
        ("send", [0, 255], HandlerSucceeded(200, "application/octet-stream", b"\0\xff")),
        ("none", 1, HandlerSucceeded(204, "", b"")),
        ("fail", 1, HandlerFailed("ValueError", "the sentence")),
        ("reject", 1, HandlerRejected("Reject", "never")),
        ("retry", 1, RetryRequested("Retry", "later", 3.0)),
    ],
)
async def test_outcome_of_each_framework_response(
    socket_dir: Path, do: str, payload: Any, outcome: FrameworkOutcome
) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as calling:
            assert await calling.invoke(invocation(do, payload)) == outcome


async def test_invocation_context_arrives_unchanged(socket_dir: Path) -> None:
    headers = {"Do": "see", "X-Odd": " ü\r\n100% \u2028", "not a token": "", "Größe": "ß"}
    attributes = {"tenant": "ü\n", "nested": {"n": [1, None]}}
    deadline = datetime(2999, 1, 2, 3, 4, 5, 678000, UTC)
    sent = invocation("see", {"ü": 1}, invocation_id="a b/ü%", attempt=7, deadline=deadline, attributes=attributes)
    sent = FrameworkRequest(**{**sent.__dict__, "headers": headers})
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(sent)
    assert isinstance(outcome, HandlerSucceeded), outcome
    assert json.loads(outcome.body) == {
        "id": "a b/ü%",
        "headers": {name.lower(): value for name, value in headers.items()},
        "attributes": attributes,
        "attempt": 7,
        "deadline": deadline.isoformat(),
        "payload": {"ü": 1},
    }


async def test_ten_megabyte_request_and_response(socket_dir: Path) -> None:
    large = bytes(range(250)) * 40_000
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as calling:
            there = await calling.invoke(invocation("digest", large))
            back = await calling.invoke(invocation("send", 10_000_000))
    assert isinstance(there, HandlerSucceeded)
    assert there.body.decode() == hashlib.sha256(large).hexdigest()
    assert isinstance(back, HandlerSucceeded)
    assert back.body == bytes(10_000_000)


async def test_body_above_the_framework_limit_is_rejected(socket_dir: Path) -> None:
    """The framework answers while megabytes are still on their way."""
    with running_framework(FRAMEWORK_SOURCE, socket_dir, GPU_RUNTIME_MAX_BODY_BYTES="1000") as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(invocation("digest", bytes(5_000_000)))
    assert isinstance(outcome, HandlerRejected)
    assert "limit of 1000 bytes" in outcome.message


async def test_response_above_the_limit_is_truncated_with_its_full_size(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket, limit=1000) as calling:
            whole = await calling.invoke(invocation("send", 1000))
            cut = await calling.invoke(invocation("send", 5000))
    assert isinstance(whole, HandlerSucceeded)
    assert (len(whole.body), whole.full_body_bytes) == (1000, None)
    assert isinstance(cut, HandlerSucceeded)
    assert (len(cut.body), cut.full_body_bytes) == (1000, 5000)


async def test_deadline_is_enforced_by_the_framework(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(invocation("hang", str(socket_dir), deadline=deadline_in(2)))
            assert outcome == TimedOut("the handler did not return before the deadline")
            assert isinstance(await calling.invoke(invocation("none", deadline=deadline_in(-1))), TimedOut)


async def test_cancelled_call_closes_its_connection(socket_dir: Path) -> None:
    """The connections end, on both sides, and so do the handlers."""
    with running_framework(FRAMEWORK_SOURCE, socket_dir, GPU_RUNTIME_CONCURRENCY="10") as framework:
        async with client(framework.socket) as calling:
            calls = [
                asyncio.ensure_future(calling.invoke(invocation("hang", str(socket_dir), invocation_id=str(number))))
                for number in range(10)
            ]
            await until(lambda: len(list(socket_dir.glob("began *"))) == 10, "not all began")
            during = open_sockets(framework)
            for call in calls:
                call.cancel()
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends)
            await until(lambda: len(list(socket_dir.glob("ended *"))) == 10, "not all ended")
            await until(lambda: open_sockets(framework) <= during - 10, "connections stay open")


async def test_killed_framework_is_a_crash_outcome(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as calling:
            call = asyncio.ensure_future(calling.invoke(invocation("hang", str(socket_dir))))
            await until((socket_dir / "began inv-1").exists, "it never began")
            framework.process.kill()
            lost = await call
            await asyncio.to_thread(framework.process.wait, 60)
            refused = await calling.invoke(invocation("none"))
    assert isinstance(lost, FrameworkFailed)
    assert lost.kind is FrameworkFailureKind.CONNECTION_LOST
    assert isinstance(refused, FrameworkFailed)
    assert (refused.kind, "refused" in refused.reason) == (FrameworkFailureKind.UNREACHABLE, True)


async def test_missing_framework_is_not_reachable(socket_dir: Path) -> None:
    async with client(socket_dir / "framework.sock") as calling:
        outcome = await calling.invoke(invocation("none"))
        assert isinstance(outcome, FrameworkFailed)
        assert outcome.kind is FrameworkFailureKind.UNREACHABLE
        waiting = asyncio.ensure_future(calling.wait_until_healthy())
        assert await calling.check_health()
        assert not waiting.done()
        with running_framework(FRAMEWORK_SOURCE, socket_dir):
            await asyncio.wait_for(waiting, 60)
            assert await calling.check_health() is None


async def test_health_polling_has_a_delay(socket_dir: Path) -> None:
    """A framework that is ill for a while is asked a few times, not thousands."""
    asked = 0

    async def ill_for_a_while(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        status = b"200 OK" if asked == 8 else b"503 Not Yet"
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    began = asyncio.get_running_loop().time()
    async with odd_framework(socket_dir, ill_for_a_while) as path, client(path) as calling:
        await calling.wait_until_healthy()
    assert asked == 8
    assert asyncio.get_running_loop().time() - began > 0.3


@asynccontextmanager
async def odd_framework(
    place: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[Path]:
    path = place / "odd.sock"

    async def served(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_unix_server(served, path):
        yield path


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
ODD: list[tuple[str, bytes, FrameworkOutcome | FrameworkFailureKind]] = [
    ("nothing", b"", FrameworkFailureKind.CONNECTION_LOST),
    ("another protocol", b"220 mail.example ESMTP\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    ("binary", bytes(range(256)), FrameworkFailureKind.MALFORMED_RESPONSE),
    ("half a head", HEAD, FrameworkFailureKind.CONNECTION_LOST),
    ("half a body", HEAD + b"Content-Length: 10\r\n\r\nabc", FrameworkFailureKind.CONNECTION_LOST),
    ("half a chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", FrameworkFailureKind.CONNECTION_LOST),
    ("a bad chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nab\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    ("a bad length", HEAD + b"Content-Length: many\r\n\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    ("an endless header", HEAD + b"A: " + b"a" * 100_000 + b"\r\n\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    (
        "compression",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n\x1f",
        FrameworkFailureKind.MALFORMED_RESPONSE,
    ),
    (
        "a redirect",
        b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        FrameworkFailureKind.MALFORMED_RESPONSE,
    ),
    ("no length", HEAD + b"\r\nabc", HandlerSucceeded(200, "a/b", b"abc")),
    ("no content type", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", HandlerSucceeded(200, "", b"x")),
    ("an error in words", b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops", HandlerFailed("HTTP 500", "oops")),
    ("too many requests", b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", RetryRequested("HTTP 429", "")),
    ("not found", b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", HandlerRejected("HTTP 404", "")),
    ("gateway timeout", b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n", TimedOut("")),
]


@pytest.mark.parametrize(("answer", "expected"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_unusual_response_has_a_defined_outcome(
    socket_dir: Path, answer: bytes, expected: FrameworkOutcome | FrameworkFailureKind
) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"null")
        writer.write(answer)

    async with odd_framework(socket_dir, odd) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x", None, deadline=deadline_in(120))), 60)
    assert (outcome.kind if isinstance(outcome, FrameworkFailed) else outcome) == expected
    assert not isinstance(outcome, FrameworkFailed) or outcome.reason


async def test_endless_response_is_aborted(socket_dir: Path) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"null")
        writer.write(HEAD + b"\r\n")
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        except OSError:
            pass

    async with odd_framework(socket_dir, endless) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x")), 60)
    assert isinstance(outcome, HandlerSucceeded)
    assert outcome.full_body_bytes == len(outcome.body) + 1


async def head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@pytest.mark.parametrize(
    ("said", "connections"),
    [
        (b"", 7),
        (b"Keep-Alive: timeout=5\r\n", 7),
        (b"Keep-Alive: soon\r\n", 7),
        (b"Keep-Alive: timeout=60, max=9\r\n", 1),
    ],
)
async def test_connection_is_reused_only_with_a_keep_alive_timeout(
    socket_dir: Path, said: bytes, connections: int
) -> None:
    """The health check finds out."""
    accepted = 0

    async def keeping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        while head := await head_of(reader):
            await reader.readexactly(4 if head.startswith(b"POST") else 0)
            writer.write(b"HTTP/1.1 200 OK\r\n" + said + b"Content-Length: 0\r\n\r\n")

    async with odd_framework(socket_dir, keeping) as path, client(path) as calling:
        assert await calling.check_health() is None
        for _ in range(6):
            assert isinstance(await calling.invoke(invocation("x")), HandlerSucceeded)
    assert accepted == connections


async def test_idle_connection_is_closed(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_connections, "IDLE_SECONDS", 0.1)
    ended = asyncio.Event()

    async def keeping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
        ended.set()

    async with odd_framework(socket_dir, keeping) as path, client(path) as calling:
        assert await calling.check_health() is None
        await asyncio.wait_for(ended.wait(), 60)
        assert await calling.check_health() is None


async def test_unsolicited_response_closes_an_idle_connection(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else it would answer the next invocation."""
    monkeypatch.setattr(framework_connections, "IDLE_SECONDS", 600)
    ended = asyncio.Event()

    async def talking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
        ended.set()

    async with odd_framework(socket_dir, talking) as path, client(path) as calling:
        assert await calling.check_health() is None
        await asyncio.wait_for(ended.wait(), 60)
        assert await calling.invoke(invocation("x")) == HandlerSucceeded(200, "", b"")


async def test_a_restarted_framework_is_reached_again(socket_dir: Path) -> None:
    """The connections to the one before it are not used."""
    async with client(socket_dir / "framework.sock") as calling:
        for _ in range(3):
            with running_framework(FRAMEWORK_SOURCE, socket_dir):
                await calling.wait_until_healthy()
                for _ in range(3):
                    assert await calling.invoke(invocation("none")) == HandlerSucceeded(204, "", b"")


async def test_silent_framework_times_out_at_the_deadline(socket_dir: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with odd_framework(socket_dir, silent) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x", deadline=deadline_in(1))), 60)
    assert outcome == TimedOut("the framework did not answer before the deadline")


@pytest.mark.parametrize("example", ["double.py", "plain_http.py"])
async def test_the_examples_double(socket_dir: Path, example: str) -> None:
    with running_command([sys.executable, str(EXAMPLES / example)], socket_dir) as framework:
        async with client(framework.socket) as calling:
            await calling.wait_until_healthy()
            outcome = await calling.invoke(invocation("x", {"n": 21}))
            refused = await calling.invoke(invocation("x", {"m": 21}))
        framework.process.terminate()
        assert await asyncio.to_thread(framework.process.wait, 60) == 0
    assert isinstance(outcome, HandlerSucceeded)
    assert json.loads(outcome.body) == {"n": 42}
    assert isinstance(refused, HandlerRejected)
    assert refused.message == 'send {"n": <number>}'
