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
from gpu_runtime.worker_sidecar.framework_request import Invocation
from gpu_runtime.worker_sidecar.framework_response import (
    Answered,
    AskedToRetry,
    Break,
    Broken,
    HandlerFailed,
    HandlerRejected,
    Outcome,
    TimedOut,
)
from localcluster.supervisor_client import wait_until
from tests.integration.framework.worker import Worker, started, worker

EXAMPLES = Path(__file__).parents[3] / "examples" / "functions"
LIMIT = 12_000_000

HELPED = """
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


def invocation(do: str, payload: Any = None, **changes: Any) -> Invocation:
    body = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    kind = "application/octet-stream" if isinstance(payload, bytes) else "application/json"
    given = {"invocation_id": "inv-1", "body": body, "content_type": kind, "headers": {"Do": do}}
    return Invocation(**{**given, **changes})


def in_(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=seconds)


async def until(condition: Callable[[], bool], what: str) -> None:
    await asyncio.to_thread(wait_until, condition, 60, lambda: what)


def open_sockets(of: Worker) -> int:
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
            Answered(200, "text/plain; charset=utf-8", hashlib.sha256(b"\0\xff").hexdigest().encode()),
        ),
        ("send", [0, 255], Answered(200, "application/octet-stream", b"\0\xff")),
        ("none", 1, Answered(204, "", b"")),
        ("fail", 1, HandlerFailed("ValueError", "the sentence")),
        ("reject", 1, HandlerRejected("Reject", "never")),
        ("retry", 1, AskedToRetry("Retry", "later", 3.0)),
    ],
)
async def test_the_helper_and_the_client_mean_the_same(place: Path, do: str, payload: Any, outcome: Outcome) -> None:
    with worker(HELPED, place) as framework:
        async with client(framework.socket) as calling:
            assert await calling.invoke(invocation(do, payload)) == outcome


async def test_everything_arrives_whatever_it_consists_of(place: Path) -> None:
    headers = {"Do": "see", "X-Odd": " ü\r\n100% \u2028", "not a token": "", "Größe": "ß"}
    attributes = {"tenant": "ü\n", "nested": {"n": [1, None]}}
    deadline = datetime(2999, 1, 2, 3, 4, 5, 678000, UTC)
    sent = invocation("see", {"ü": 1}, invocation_id="a b/ü%", attempt=7, deadline=deadline, attributes=attributes)
    sent = Invocation(**{**sent.__dict__, "headers": headers})
    with worker(HELPED, place) as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(sent)
    assert isinstance(outcome, Answered), outcome
    assert json.loads(outcome.body) == {
        "id": "a b/ü%",
        "headers": {name.lower(): value for name, value in headers.items()},
        "attributes": attributes,
        "attempt": 7,
        "deadline": deadline.isoformat(),
        "payload": {"ü": 1},
    }


async def test_ten_megabytes_go_both_ways(place: Path) -> None:
    large = bytes(range(250)) * 40_000
    with worker(HELPED, place) as framework:
        async with client(framework.socket) as calling:
            there = await calling.invoke(invocation("digest", large))
            back = await calling.invoke(invocation("send", 10_000_000))
    assert isinstance(there, Answered)
    assert there.body.decode() == hashlib.sha256(large).hexdigest()
    assert isinstance(back, Answered)
    assert back.body == bytes(10_000_000)


async def test_a_body_above_the_frameworks_limit_is_refused_with_the_limit(place: Path) -> None:
    """The framework answers while megabytes are still on their way."""
    with worker(HELPED, place, GPU_RUNTIME_MAX_BODY_BYTES="1000") as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(invocation("digest", bytes(5_000_000)))
    assert isinstance(outcome, HandlerRejected)
    assert "limit of 1000 bytes" in outcome.message


async def test_of_an_answer_above_the_limit_the_beginning_is_kept_with_the_truth_about_its_size(place: Path) -> None:
    with worker(HELPED, place) as framework:
        async with client(framework.socket, limit=1000) as calling:
            whole = await calling.invoke(invocation("send", 1000))
            cut = await calling.invoke(invocation("send", 5000))
    assert isinstance(whole, Answered)
    assert (len(whole.body), whole.size) == (1000, None)
    assert isinstance(cut, Answered)
    assert (len(cut.body), cut.size) == (1000, 5000)


async def test_the_deadline_holds_with_a_framework_that_keeps_it(place: Path) -> None:
    with worker(HELPED, place) as framework:
        async with client(framework.socket) as calling:
            outcome = await calling.invoke(invocation("hang", str(place), deadline=in_(2)))
            assert outcome == TimedOut("the handler did not return before the deadline")
            assert isinstance(await calling.invoke(invocation("none", deadline=in_(-1))), TimedOut)


async def test_a_cancelled_call_leaves_nothing_behind(place: Path) -> None:
    """The connections end, on both sides, and so do the handlers."""
    with worker(HELPED, place, GPU_RUNTIME_CONCURRENCY="10") as framework:
        async with client(framework.socket) as calling:
            calls = [
                asyncio.ensure_future(calling.invoke(invocation("hang", str(place), invocation_id=str(number))))
                for number in range(10)
            ]
            await until(lambda: len(list(place.glob("began *"))) == 10, "not all began")
            during = open_sockets(framework)
            for call in calls:
                call.cancel()
            ends = await asyncio.gather(*calls, return_exceptions=True)
            assert all(isinstance(end, asyncio.CancelledError) for end in ends)
            await until(lambda: len(list(place.glob("ended *"))) == 10, "not all ended")
            await until(lambda: open_sockets(framework) <= during - 10, "connections stay open")


async def test_a_framework_that_is_killed_in_the_middle(place: Path) -> None:
    with worker(HELPED, place) as framework:
        async with client(framework.socket) as calling:
            call = asyncio.ensure_future(calling.invoke(invocation("hang", str(place))))
            await until((place / "began inv-1").exists, "it never began")
            framework.process.kill()
            lost = await call
            await asyncio.to_thread(framework.process.wait, 60)
            refused = await calling.invoke(invocation("none"))
    assert isinstance(lost, Broken)
    assert lost.kind is Break.LOST
    assert isinstance(refused, Broken)
    assert (refused.kind, "refused" in refused.reason) == (Break.UNREACHABLE, True)


async def test_no_framework_yet(place: Path) -> None:
    async with client(place / "framework.sock") as calling:
        outcome = await calling.invoke(invocation("none"))
        assert isinstance(outcome, Broken)
        assert outcome.kind is Break.UNREACHABLE
        waiting = asyncio.ensure_future(calling.wait_until_healthy())
        assert await calling.health()
        assert not waiting.done()
        with worker(HELPED, place):
            await asyncio.wait_for(waiting, 60)
            assert await calling.health() is None


async def test_waiting_for_health_is_never_busy(place: Path) -> None:
    """A framework that is ill for a while is asked a few times, not thousands."""
    asked = 0

    async def ill_for_a_while(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal asked
        asked += 1
        status = b"200 OK" if asked == 8 else b"503 Not Yet"
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\n\r\n")

    began = asyncio.get_running_loop().time()
    async with odd_framework(place, ill_for_a_while) as path, client(path) as calling:
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
ODD: list[tuple[str, bytes, Outcome | Break]] = [
    ("nothing", b"", Break.LOST),
    ("another protocol", b"220 mail.example ESMTP\r\n", Break.GARBLED),
    ("binary", bytes(range(256)), Break.GARBLED),
    ("half a head", HEAD, Break.LOST),
    ("half a body", HEAD + b"Content-Length: 10\r\n\r\nabc", Break.LOST),
    ("half a chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\n5\r\nab", Break.LOST),
    ("a bad chunk", HEAD + b"Transfer-Encoding: chunked\r\n\r\nxyz\r\nab\r\n", Break.GARBLED),
    ("a bad length", HEAD + b"Content-Length: many\r\n\r\n", Break.GARBLED),
    ("an endless header", HEAD + b"A: " + b"a" * 100_000 + b"\r\n\r\n", Break.GARBLED),
    ("compression", HEAD + b"Content-Encoding: gzip\r\nContent-Length: 1\r\n\r\n\x1f", Break.GARBLED),
    ("a redirect", b"HTTP/1.1 302 Found\r\nLocation: http://elsewhere/\r\nContent-Length: 0\r\n\r\n", Break.GARBLED),
    ("no length", HEAD + b"\r\nabc", Answered(200, "a/b", b"abc")),
    ("no content type", b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\nx", Answered(200, "", b"x")),
    ("an error in words", b"HTTP/1.1 500 No\r\nContent-Length: 4\r\n\r\noops", HandlerFailed("HTTP 500", "oops")),
    ("too many requests", b"HTTP/1.1 429 No\r\nContent-Length: 0\r\n\r\n", AskedToRetry("HTTP 429", "")),
    ("not found", b"HTTP/1.1 404 No\r\nContent-Length: 0\r\n\r\n", HandlerRejected("HTTP 404", "")),
    ("gateway timeout", b"HTTP/1.1 504 No\r\nContent-Length: 0\r\n\r\n", TimedOut("")),
]


@pytest.mark.parametrize(("answer", "expected"), [row[1:] for row in ODD], ids=[row[0] for row in ODD])
async def test_an_odd_answer_is_one_of_the_outcomes(place: Path, answer: bytes, expected: Outcome | Break) -> None:
    async def odd(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"null")
        writer.write(answer)

    async with odd_framework(place, odd) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x", None, deadline=in_(120))), 60)
    assert (outcome.kind if isinstance(outcome, Broken) else outcome) == expected
    assert not isinstance(outcome, Broken) or outcome.reason


async def test_an_endless_answer_is_not_read_for_ever(place: Path) -> None:
    async def endless(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"null")
        writer.write(HEAD + b"\r\n")
        try:
            while True:
                writer.write(bytes(65536))
                await writer.drain()
        except OSError:
            pass

    async with odd_framework(place, endless) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x")), 60)
    assert isinstance(outcome, Answered)
    assert outcome.size == len(outcome.body) + 1


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
async def test_a_connection_is_used_again_where_the_framework_says_how_long(
    place: Path, said: bytes, connections: int
) -> None:
    """The health check finds out."""
    accepted = 0

    async def keeping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal accepted
        accepted += 1
        while head := await head_of(reader):
            await reader.readexactly(4 if head.startswith(b"POST") else 0)
            writer.write(b"HTTP/1.1 200 OK\r\n" + said + b"Content-Length: 0\r\n\r\n")

    async with odd_framework(place, keeping) as path, client(path) as calling:
        assert await calling.health() is None
        for _ in range(6):
            assert isinstance(await calling.invoke(invocation("x")), Answered)
    assert accepted == connections


async def test_a_connection_that_rests_for_long_is_ended(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(framework_connections, "IDLE_SECONDS", 0.1)
    ended = asyncio.Event()

    async def keeping(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
        ended.set()

    async with odd_framework(place, keeping) as path, client(path) as calling:
        assert await calling.health() is None
        await asyncio.wait_for(ended.wait(), 60)
        assert await calling.health() is None


async def test_what_nobody_asked_for_ends_a_connection_that_rests(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else it would answer the next invocation."""
    monkeypatch.setattr(framework_connections, "IDLE_SECONDS", 600)
    ended = asyncio.Event()

    async def talking(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while await head_of(reader):
            writer.write(b"HTTP/1.1 200 OK\r\nKeep-Alive: timeout=60\r\nContent-Length: 0\r\n\r\n")
            await asyncio.sleep(0.05)
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nother")
        ended.set()

    async with odd_framework(place, talking) as path, client(path) as calling:
        assert await calling.health() is None
        await asyncio.wait_for(ended.wait(), 60)
        assert await calling.invoke(invocation("x")) == Answered(200, "", b"")


async def test_a_restarted_framework_is_reached_again(place: Path) -> None:
    """The connections to the one before it are not used."""
    async with client(place / "framework.sock") as calling:
        for _ in range(3):
            with worker(HELPED, place):
                await calling.wait_until_healthy()
                for _ in range(3):
                    assert await calling.invoke(invocation("none")) == Answered(204, "", b"")


async def test_a_framework_that_says_nothing_is_left_at_the_deadline(place: Path) -> None:
    async def silent(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with odd_framework(place, silent) as path, client(path) as calling:
        outcome = await asyncio.wait_for(calling.invoke(invocation("x", deadline=in_(1))), 60)
    assert outcome == TimedOut("the framework did not answer before the deadline")


@pytest.mark.parametrize("example", ["double.py", "plain_http.py"])
async def test_the_examples_double(place: Path, example: str) -> None:
    with started([sys.executable, str(EXAMPLES / example)], place) as framework:
        async with client(framework.socket) as calling:
            await calling.wait_until_healthy()
            outcome = await calling.invoke(invocation("x", {"n": 21}))
            refused = await calling.invoke(invocation("x", {"m": 21}))
        framework.process.terminate()
        assert await asyncio.to_thread(framework.process.wait, 60) == 0
    assert isinstance(outcome, Answered)
    assert json.loads(outcome.body) == {"n": 42}
    assert isinstance(refused, HandlerRejected)
    assert refused.message == 'send {"n": <number>}'
