"""Malformed HTTP on the framework's socket, in both directions: an answer that blames the sender, and a verdict."""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_request import Invocation
from gpu_runtime.worker_sidecar.framework_response import Outcome
from gpu_runtime.worker_sidecar.retry_decision import Again, Ended, verdict
from localcluster.supervisor_client import wait_until
from tests.fuzz.cases import fuzzed
from tests.fuzz.loop import Loop
from tests.fuzz.nasty import deep, mutated, texts
from tests.integration.framework.worker import (
    CHUNKED,
    CLOSE,
    ECHO,
    GOOD,
    STATUS,
    Worker,
    exchanged,
    socket_place,
    worker,
)

TOLD = (
    b"POST /invoke HTTP/1.1\r\nGpu-Runtime-Invocation-Id: inv-1\r\nGpu-Runtime-Deadline: 2999-01-01T00:00:00.000Z\r\n"
    b'Gpu-Runtime-Attempt: 1\r\nGpu-Runtime-Attributes: {"a":"b"}\r\nGpu-Runtime-Header-A%20b: c%00\r\n'
    b"Content-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}"
)


def headers(name: str, value: str) -> bytes:
    head = f"POST /invoke HTTP/1.1\r\nGpu-Runtime-{name}: {value}\r\nContent-Length: 0\r\n\r\n"
    return head.encode(errors="replace")


NAMES = st.sampled_from(["Invocation-Id", "Deadline", "Attempt", "Attributes", "Header-X"])
REQUESTS = st.one_of(
    mutated([GOOD, CHUNKED, TOLD, CLOSE, GOOD + GOOD, TOLD + CHUNKED]),
    st.builds(headers, NAMES, texts()),
    deep().map(lambda body: GOOD.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % len(body) + body),
    st.binary(max_size=300),
)


@pytest.fixture(scope="module")
def asked() -> Iterator[Worker]:
    with (
        socket_place() as place,
        worker(ECHO, place, GPU_RUNTIME_CONCURRENCY="4", GPU_RUNTIME_MAX_BODY_BYTES="100000") as running,
    ):
        yield running


def open_files(running: Worker) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def test_random_requests_never_crash_a_framework_hang_it_or_count_as_its_failure(asked: Worker) -> None:
    open_before = open_files(asked)
    requests_are_answered(asked)
    assert asked.ask({"n": 1}).json == {"n": 1}
    assert "fault of the framework" not in asked.log
    assert "Traceback" not in asked.log
    wait_until(lambda: open_files(asked) <= open_before, 10, lambda: "connections stay open")


@fuzzed(300)
@given(REQUESTS)
@example(headers("Deadline", "0001-01-01T00:00:00+23:59"))
@example(headers("Deadline", "9999-12-31T23:59:59-23:59"))
@example(headers("Attempt", "9" * 5000))
def requests_are_answered(asked: Worker, data: bytes) -> None:
    """The echo cannot fail, so no answer may be a 5xx, except that a deadline in the past has passed."""
    answer = exchanged(asked.socket, data, half_close=True)
    assert answer == b"" or answer.startswith(b"HTTP/1.1 ")
    assert not {int(status) for status in STATUS.findall(answer)} & {500, 501, 502, 503, 505}


ANSWERS = (
    b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\nRetry-After: 1\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b'HTTP/1.1 500 No\r\nContent-Type: application/json\r\n\r\n{"error": {"type": "ValueError", "message": "no"}}',
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=b; expires=x\r\nLocation: ://\r\nLink: <\r\n\r\n",
    b"HTTP/1.1 301 Moved\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
)


class OddFramework:
    """Reads an invocation, writes what it was told to, and hangs up."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answer = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.answer)
        finally:
            writer.close()

    async def asked(self, answer: bytes) -> tuple[str | None, Outcome]:
        """What the sidecar makes of this answer, as one to its health check and to an invocation."""
        self.answer = answer
        async with FrameworkClient(str(self.path), "/invoke", "/healthz", 1000) as client:
            deadline = datetime.now(UTC) + timedelta(seconds=5)
            return await client.health(), await client.invoke(Invocation(invocation_id="inv-1", deadline=deadline))


@pytest.fixture(scope="module")
def loop() -> Iterator[Loop]:
    with Loop() as running:
        yield running


@pytest.fixture(scope="module")
def odd(loop: Loop) -> Iterator[OddFramework]:
    with socket_place() as place:
        made = OddFramework(place / "odd.sock")

        async def listening() -> asyncio.Server:
            return await asyncio.start_unix_server(made.serve, made.path)

        server = loop.call(listening())
        yield made
        server.close()


@fuzzed(100)
@given(st.one_of(mutated(ANSWERS), st.binary(max_size=100)))
def test_random_answers_get_a_verdict(loop: Loop, odd: OddFramework, answer: bytes) -> None:
    """None raises, and none outlasts the deadline by much."""
    problem, outcome = loop.call(odd.asked(answer), within=10)
    assert problem is None or problem
    assert isinstance(verdict(outcome), Ended | Again)
