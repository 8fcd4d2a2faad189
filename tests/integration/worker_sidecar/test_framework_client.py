"""The framework client against real, misbehaving and missing frameworks."""

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

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.worker_sidecar import framework_connections
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
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
        case "inspect":
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
            directory = pathlib.Path(request.payload)
            (directory / f"started {request.invocation_id}").touch()
            try:
                await asyncio.Event().wait()
            finally:
                (directory / f"finished {request.invocation_id}").touch()

serve()
"""


def client(path: str | Path, limit: int = LIMIT) -> FrameworkClient:
    return FrameworkClient(str(path), "/invoke", "/healthz", limit)


def invocation(do: str, payload: Any = None, deadline: datetime | None = None, **changes: Any) -> Dispatch:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    content_type = "application/octet-stream" if isinstance(payload, bytes) else "application/json"
    defaults = {"invocation_id": "inv-1", "body": body, "content_type": content_type, "headers": {"Do": do}}
    sent = Invocation(**{"serverless_request_id": "f", "timeout_seconds": 3600, **defaults, **changes})
    return Dispatch(invocation=sent, deadline=deadline or deadline_in(3600), dispatched_at=datetime.now(UTC))


async def invoke(framework_client: FrameworkClient, sent: Dispatch, attempt: int = 1) -> FrameworkOutcome:
    with framework_client.response_slot() as slot:
        return await framework_client.invoke(sent, slot, attempt)


def deadline_in(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def until(condition: Callable[[], bool], failure: str) -> None:
    await asyncio.to_thread(wait_until, condition, 60, lambda: failure)


def open_sockets(framework: FrameworkProcess) -> int:
    count = 0
    for link in Path(f"/proc/{framework.process.pid}/fd").iterdir():
        try:
            count += str(link.readlink()).startswith("socket:")
        except FileNotFoundError:
            continue
    return count


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
        async with client(framework.socket) as framework_client:
            assert await invoke(framework_client, invocation(do, payload)) == outcome


async def test_invocation_context_arrives_unchanged(socket_dir: Path) -> None:
    headers = {"Do": "inspect", "X-Odd": " ü\r\n100% \u2028", "not a token": "", "Größe": "ß"}
    attributes = {"tenant": "ü\n", "nested": {"n": [1, None]}}
    deadline = datetime(2999, 1, 2, 3, 4, 5, 678000, UTC)
    sent = invocation("inspect", {"ü": 1}, deadline, invocation_id="a b/ü%", headers=headers, attributes=attributes)
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as framework_client:
            outcome = await invoke(framework_client, sent, 7)
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
        async with client(framework.socket) as framework_client:
            uploaded = await invoke(framework_client, invocation("digest", large))
            downloaded = await invoke(framework_client, invocation("send", 10_000_000))
    assert isinstance(uploaded, HandlerSucceeded)
    assert uploaded.body.decode() == hashlib.sha256(large).hexdigest()
    assert isinstance(downloaded, HandlerSucceeded)
    assert downloaded.body == bytes(10_000_000)


async def test_body_above_the_framework_limit_is_rejected(socket_dir: Path) -> None:
    """The framework responds while the client is still sending megabytes."""
    with running_framework(FRAMEWORK_SOURCE, socket_dir, GPU_RUNTIME_MAX_BODY_BYTES="1000") as framework:
        async with client(framework.socket) as framework_client:
            outcome = await invoke(framework_client, invocation("digest", bytes(5_000_000)))
    assert isinstance(outcome, HandlerRejected)
    assert "limit of 1000 bytes" in outcome.message


async def test_response_above_the_limit_is_truncated_with_its_full_size(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket, limit=1000) as framework_client:
            complete = await invoke(framework_client, invocation("send", 1000))
            truncated = await invoke(framework_client, invocation("send", 5000))
    assert isinstance(complete, HandlerSucceeded)
    assert (len(complete.body), complete.full_body_bytes) == (1000, None)
    assert isinstance(truncated, HandlerSucceeded)
    assert (len(truncated.body), truncated.full_body_bytes) == (1000, 5000)


async def test_deadline_is_enforced_by_the_framework(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as framework_client:
            outcome = await invoke(framework_client, invocation("hang", str(socket_dir), deadline=deadline_in(2)))
            assert outcome == TimedOut("the handler did not return before the deadline")
            assert isinstance(await invoke(framework_client, invocation("none", deadline=deadline_in(-1))), TimedOut)


async def test_cancelled_call_closes_its_connection(socket_dir: Path) -> None:
    """Both sides close the connections, and the framework cancels the handlers."""
    with running_framework(FRAMEWORK_SOURCE, socket_dir, GPU_RUNTIME_CONCURRENCY="10") as framework:
        async with client(framework.socket) as framework_client:
            calls = [
                asyncio.ensure_future(
                    invoke(framework_client, invocation("hang", str(socket_dir), invocation_id=str(number)))
                )
                for number in range(10)
            ]
            await until(lambda: len(list(socket_dir.glob("started *"))) == 10, "not all handlers started")
            during = open_sockets(framework)
            for call in calls:
                call.cancel()
            outcomes = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(outcome, asyncio.CancelledError) for outcome in outcomes)
            await until(lambda: len(list(socket_dir.glob("finished *"))) == 10, "not all handlers finished")
            await until(lambda: open_sockets(framework) <= during - 10, "the connections are still open")


async def test_killed_framework_is_a_crash_outcome(socket_dir: Path) -> None:
    with running_framework(FRAMEWORK_SOURCE, socket_dir) as framework:
        async with client(framework.socket) as framework_client:
            call = asyncio.ensure_future(invoke(framework_client, invocation("hang", str(socket_dir))))
            await until((socket_dir / "started inv-1").exists, "the handler did not start")
            framework.process.kill()
            lost = await call
            await asyncio.to_thread(framework.process.wait, 60)
            unreachable = await invoke(framework_client, invocation("none"))
    assert isinstance(lost, FrameworkFailed)
    assert lost.kind is FrameworkFailureKind.CONNECTION_LOST
    assert isinstance(unreachable, FrameworkFailed)
    assert (unreachable.kind, "refused" in unreachable.reason) == (FrameworkFailureKind.UNREACHABLE, True)


async def test_missing_framework_is_unreachable_until_it_starts(socket_dir: Path) -> None:
    async with client(socket_dir / "framework.sock") as framework_client:
        outcome = await invoke(framework_client, invocation("none"))
        assert isinstance(outcome, FrameworkFailed)
        assert outcome.kind is FrameworkFailureKind.UNREACHABLE
        waiting = asyncio.ensure_future(framework_client.wait_until_healthy())
        assert await framework_client.check_health()
        assert not waiting.done()
        with running_framework(FRAMEWORK_SOURCE, socket_dir):
            await asyncio.wait_for(waiting, 60)
            assert await framework_client.check_health() is None


async def test_health_polling_has_a_delay(socket_dir: Path) -> None:
    """The client checks an unhealthy framework a few times, not thousands of times."""
    checks = 0

    async def unhealthy_for_seven_checks(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal checks
        checks += 1
        status = b"200 OK" if checks == 8 else b"503 Not Yet"
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    started = asyncio.get_running_loop().time()
    async with fake_framework(socket_dir, unhealthy_for_seven_checks) as path, client(path) as framework_client:
        await framework_client.wait_until_healthy()
    assert checks == 8
    assert asyncio.get_running_loop().time() - started > 0.3


@asynccontextmanager
async def fake_framework(
    directory: Path, serve: Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]
) -> AsyncIterator[Path]:
    """Serve connections with the given function, and close each one when the function returns."""
    path = directory / "fake.sock"

    async def handle(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await serve(reader, writer)
        finally:
            writer.close()

    async with await asyncio.start_unix_server(handle, path):
        yield path


HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n"
UNUSUAL_RESPONSES: list[tuple[str, bytes, FrameworkOutcome | FrameworkFailureKind]] = [
    ("no data", b"", FrameworkFailureKind.CONNECTION_LOST),
    ("another protocol", b"220 mail.example ESMTP\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    ("binary", bytes(range(256)), FrameworkFailureKind.MALFORMED_RESPONSE),
    ("half a head", HEAD, FrameworkFailureKind.CONNECTION_LOST),
    ("half a body", HEAD + b"Content-Length: 10\r\n\r\nabc", FrameworkFailureKind.CONNECTION_LOST),
    ("half a chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", FrameworkFailureKind.CONNECTION_LOST),
    (
        "a malformed chunk size",
        HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nab\r\n",
        FrameworkFailureKind.MALFORMED_RESPONSE,
    ),
    ("a malformed Content-Length", HEAD + b"Content-Length: many\r\n\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    ("a header above the limit", HEAD + b"A: " + b"a" * 100_000 + b"\r\n\r\n", FrameworkFailureKind.MALFORMED_RESPONSE),
    (
        "a compressed body",
        HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n\x1f",
        FrameworkFailureKind.MALFORMED_RESPONSE,
    ),
    (
        "a redirect",
        b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n",
        FrameworkFailureKind.MALFORMED_RESPONSE,
    ),
    ("no Content-Length", HEAD + b"\r\nabc", HandlerSucceeded(200, "a/b", b"abc")),
    ("no content type", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", HandlerSucceeded(200, "", b"x")),
    ("an error as plain text", b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops", HandlerFailed("HTTP 500", "oops")),
    ("too many requests", b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", RetryRequested("HTTP 429", "")),
    ("not found", b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", HandlerRejected("HTTP 404", "")),
    ("gateway timeout", b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n", TimedOut("")),
]


@pytest.mark.parametrize(
    ("response", "expected"), [row[1:] for row in UNUSUAL_RESPONSES], ids=[row[0] for row in UNUSUAL_RESPONSES]
)
async def test_unusual_response_has_a_defined_outcome(
    socket_dir: Path, response: bytes, expected: FrameworkOutcome | FrameworkFailureKind
) -> None:
    async def respond(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"null")
        writer.write(response)

    async with fake_framework(socket_dir, respond) as path, client(path) as framework_client:
        outcome = await asyncio.wait_for(invoke(framework_client, invocation("x", None, deadline=deadline_in(120))), 60)
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

    async with fake_framework(socket_dir, endless) as path, client(path) as framework_client:
        outcome = await asyncio.wait_for(invoke(framework_client, invocation("x")), 60)
    assert isinstance(outcome, HandlerSucceeded)
    assert outcome.full_body_bytes == len(outcome.body) + 1


async def head_of(reader: asyncio.StreamReader) -> bytes:
    try:
        return await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return b""


@pytest.mark.parametrize(
    ("keep_alive", "connections"),
    [
        (b"", 7),
        (b"Keep-Alive: timeout=5\r\n", 7),
        (b"Keep-Alive: soon\r\n", 7),
        (b"Keep-Alive: timeout=60, max=9\r\n", 1),
    ],
)
async def test_connection_is_reused_only_with_a_keep_alive_timeout(
    socket_dir: Path, keep_alive: bytes, connections: int
) -> None:
    """The response to the health check decides whether the client reuses connections."""
    accepted = 0

    async def serve_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        while head := await head_of(reader):
            await reader.readexactly(4 if head.startswith(b"POST") else 0)
            writer.write(b"HTTP/1.1 200 OK\r\n" + keep_alive + b"Content-Length: 0\r\n\r\n")

    async with fake_framework(socket_dir, serve_requests) as path, client(path) as framework_client:
        assert await framework_client.check_health() is None
        for _ in range(6):
            assert isinstance(await invoke(framework_client, invocation("x")), HandlerSucceeded)
    assert accepted == connections


async def test_idle_connection_is_closed(socket_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_connections, "IDLE_TIMEOUT_SECONDS", 0.1)
    closed = asyncio.Event()

    async def serve_requests(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
        closed.set()

    async with fake_framework(socket_dir, serve_requests) as path, client(path) as framework_client:
        assert await framework_client.check_health() is None
        await asyncio.wait_for(closed.wait(), 60)
        assert await framework_client.check_health() is None


async def test_unsolicited_response_closes_an_idle_connection(
    socket_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Otherwise the unsolicited response would become the response to the next invocation."""
    monkeypatch.setattr(framework_connections, "IDLE_TIMEOUT_SECONDS", 600)
    closed = asyncio.Event()

    async def serve_unsolicited_response(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
        closed.set()

    async with fake_framework(socket_dir, serve_unsolicited_response) as path, client(path) as framework_client:
        assert await framework_client.check_health() is None
        await asyncio.wait_for(closed.wait(), 60)
        assert await invoke(framework_client, invocation("x")) == HandlerSucceeded(200, "", b"")


async def test_restarted_framework_is_called_over_new_connections(socket_dir: Path) -> None:
    """The client does not reuse connections to the previous process."""
    async with client(socket_dir / "framework.sock") as framework_client:
        for _ in range(3):
            with running_framework(FRAMEWORK_SOURCE, socket_dir):
                await framework_client.wait_until_healthy()
                for _ in range(3):
                    assert await invoke(framework_client, invocation("none")) == HandlerSucceeded(204, "", b"")


async def test_silent_framework_times_out_at_the_deadline(socket_dir: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with fake_framework(socket_dir, silent) as path, client(path) as framework_client:
        outcome = await asyncio.wait_for(invoke(framework_client, invocation("x", deadline=deadline_in(1))), 60)
    assert outcome == TimedOut("the framework did not answer before the deadline")


@pytest.mark.parametrize("example", ["double.py", "plain_http.py"])
async def test_example_functions_double_their_input(socket_dir: Path, example: str) -> None:
    with running_command([sys.executable, str(EXAMPLES / example)], socket_dir) as framework:
        async with client(framework.socket) as framework_client:
            await framework_client.wait_until_healthy()
            outcome = await invoke(framework_client, invocation("x", {"n": 21}))
            rejected = await invoke(framework_client, invocation("x", {"m": 21}))
        framework.process.terminate()
        assert await asyncio.to_thread(framework.process.wait, 60) == 0
    assert isinstance(outcome, HandlerSucceeded)
    assert json.loads(outcome.body) == {"n": 42}
    assert isinstance(rejected, HandlerRejected)
    assert rejected.message == 'send {"n": <number>}'
