"""Whatever is sent: an answer that blames the sender, and the next good request works."""

import asyncio
import select
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from gpu_runtime.framework.entrypoint import serve_until
from gpu_runtime.framework.request import Request
from gpu_runtime.framework.settings import Limits, Settings
from localcluster.supervisor_client import wait_until
from tests.integration.framework.worker import (
    CHUNKED,
    CLOSE,
    ECHO,
    GOOD,
    STATUS,
    Worker,
    dialled,
    exchanged,
    takes_connections,
    worker,
)


@pytest.fixture(scope="module")
def asked(module_place: Path) -> Iterator[Worker]:
    with worker(ECHO, module_place, GPU_RUNTIME_CONCURRENCY="4", GPU_RUNTIME_MAX_BODY_BYTES="100000") as running:
        yield running


def statuses(answer: bytes) -> list[int]:
    return [int(status) for status in STATUS.findall(answer)]


REFUSED: list[tuple[str, bytes, int]] = [
    ("no HTTP", b"\x16\x03\x01\x02\x00\x01\r\n", 400),
    ("an empty line", b"\r\n" + GOOD, 400),
    ("HTTP/2", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", 400),
    ("HTTP/0.9", b"GET /healthz\r\n", 400),
    ("no path", b"POST invoke HTTP/1.1\r\n\r\n", 400),
    ("a bare line feed", GOOD.replace(b"\r\n", b"\n"), 400),
    ("a folded header", b"GET /healthz HTTP/1.1\r\nA: b\r\n c\r\n\r\n", 400),
    ("a space before the colon", b"GET /healthz HTTP/1.1\r\nA : b\r\n\r\n", 400),
    ("a NUL in a header", b"GET /healthz HTTP/1.1\r\nA: \0\r\n\r\n", 400),
    ("a carriage return in a header", b"GET /healthz HTTP/1.1\r\nA: b\rc\r\n\r\n", 400),
    ("a negative length", GOOD.replace(b"7\r", b"-7\r"), 400),
    ("a length with a plus", GOOD.replace(b"7\r", b"+7\r"), 400),
    ("two lengths", GOOD.replace(b"Host: x", b"Content-Length: 7"), 400),
    ("a length and chunks", GOOD.replace(b"Host: x", b"Transfer-Encoding: chunked"), 400),
    ("another coding", CHUNKED.replace(b"chunked", b"gzip, chunked"), 400),
    ("chunks in HTTP/1.0", CHUNKED.replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
    ("a chunk that is longer", CHUNKED.replace(b"3;x", b"2;x"), 400),
    ("a chunk size with a sign", CHUNKED.replace(b"3;x", b"+3;x"), 400),
    ("a huge chunk size", CHUNKED.replace(b"3;x", b"F" * 40 + b";x"), 400),
    ("a malformed trailer", CHUNKED.replace(b"Trailer: 1", b"Trailer"), 400),
    ("too large a length", GOOD.replace(b"7\r", b"100001\r") + bytes(100_000), 413),
    ("too large a chunk", CHUNKED.replace(b"3;x", b"FFFFFF;x"), 413),
    ("too many chunks", CHUNKED.replace(b"0\r\nT", (b"8000\r\n" + bytes(0x8000) + b"\r\n") * 4), 413),
    ("too large a head", b"GET /healthz HTTP/1.1\r\nA: " + b"a" * 140_000, 431),
    ("too many headers", b"GET /healthz HTTP/1.1\r\n" + b"A: b\r\n" * 30_000 + b"\r\n", 431),
    ("another path", GOOD.replace(b"/invoke", b"/other"), 404),
    ("another method", b"GET /invoke HTTP/1.1\r\n\r\n", 405),
    ("posting to health", GOOD.replace(b"/invoke", b"/healthz"), 405),
    ("a payload that is not JSON", GOOD.replace(b"{", b"["), 400),
]


@pytest.mark.parametrize(("data", "status"), [row[1:] for row in REFUSED], ids=[row[0] for row in REFUSED])
def test_what_is_malformed_is_refused_and_the_connection_ends(asked: Worker, data: bytes, status: int) -> None:
    """The caller does not hang up; it is the framework that does not wait for more."""
    answer = exchanged(asked.socket, data)
    assert statuses(answer) == [status]
    assert b'{"error": {"type": "BadRequest"' in answer
    assert b"Connection: close" in answer


def test_who_sends_everything_first_still_reads_the_refusal(asked: Worker) -> None:
    reply = asked.request("POST", "/invoke", bytes(3_000_000), {"Content-Type": "a/b"})
    assert (reply.status, "limit of 100000 bytes" in reply.error[1]) == (413, True)


def test_a_body_that_ends_early_is_refused(asked: Worker) -> None:
    for data in (GOOD[:-1], CHUNKED[:-2], GOOD[:20]):
        assert statuses(exchanged(asked.socket, data, half_close=True)) == [400]


def test_requests_follow_each_other_on_one_connection(asked: Worker) -> None:
    assert statuses(exchanged(asked.socket, GOOD + CHUNKED + GOOD + CLOSE)) == [200, 200, 200, 200]


def test_an_old_client_gets_its_answer_and_the_end(asked: Worker) -> None:
    assert statuses(exchanged(asked.socket, GOOD.replace(b"HTTP/1.1", b"HTTP/1.0"))) == [200]


def test_a_client_that_asks_first_is_told_to_go_on(asked: Worker) -> None:
    asking = GOOD.replace(b"Host: x", b"Expect: 100-continue")
    assert statuses(exchanged(asked.socket, asking + CLOSE)) == [100, 200, 200]
    refused = asking.replace(b"7\r", b"100001\r")
    assert statuses(exchanged(asked.socket, refused)) == [413]


def test_a_query_does_not_change_the_path(asked: Worker) -> None:
    assert statuses(exchanged(asked.socket, GOOD.replace(b"/invoke", b"/inv%6Fke?a=b") + CLOSE)) == [200, 200]


def echo(request: Request) -> object:
    return request.payload


@asynccontextmanager
async def impatient(place: Path) -> AsyncIterator[str]:
    """A framework in this process, with little patience."""
    limits = Limits(idle_seconds=1.0, head_seconds=1.0, body_seconds=1.0, send_seconds=1.0, linger_seconds=0.1)
    stopping, path = asyncio.Event(), str(place / "framework.sock")
    async with asyncio.TaskGroup() as group:
        group.create_task(serve_until(stopping, Settings(socket=path, limits=limits), echo))
        await asyncio.to_thread(wait_until, lambda: takes_connections(path), 60, lambda: "it does not listen")
        yield path
        stopping.set()


@pytest.mark.parametrize(
    ("data", "statuses_"),
    [
        (b"", []),
        (GOOD, [200]),
        (GOOD[:30], [408]),
        (GOOD[:-3], [408]),
        (CHUNKED[:-20], [408]),
        (GOOD[:30] + bytes(3), [408]),
    ],
    ids=["silent", "idle after a request", "in the head", "in the body", "in a chunk", "in a bad line"],
)
async def test_who_stops_sending_is_sent_away(place: Path, data: bytes, statuses_: list[int]) -> None:
    """The caller only waits; the framework ends the connection."""
    async with impatient(place) as path:
        answer = await asyncio.wait_for(asyncio.to_thread(exchanged, path, data), 60)
    assert statuses(answer) == statuses_


def received_late(path: str, data: bytes) -> bytes:
    """Send, and read only when the other side has given up."""
    with dialled(path) as connection:
        connection.sendall(data)
        poll = select.poll()
        poll.register(connection, 0)
        assert poll.poll(60_000), "it never gives up"
        return b"".join(iter(lambda: connection.recv(65536), b""))


async def test_who_does_not_read_is_sent_away(place: Path) -> None:
    large = bytes(5_000_000)
    head = b"POST /invoke HTTP/1.1\r\nContent-Type: a/b\r\nContent-Length: %d\r\n\r\n" % len(large)
    async with impatient(place) as path:
        assert len(await asyncio.to_thread(received_late, path, head + large)) < len(large)
