"""Malformed HTTP on the framework socket, in both directions.

The framework answers random requests with a 4xx status, and the sidecar makes a retry decision for random responses.
"""

import asyncio
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.worker_sidecar.framework_client import FrameworkClient
from gpu_runtime.worker_sidecar.framework_response import FrameworkOutcome
from gpu_runtime.worker_sidecar.retry_decision import FinishInvocation, RetryInvocation, disposition_of
from localcluster.supervisor_client import wait_until
from tests.fuzz.fuzz_settings import fuzzed
from tests.fuzz.loop_thread import LoopThread
from tests.fuzz.strategies import deeply_nested, mutated_bytes, texts
from tests.integration.framework.framework_process import (
    CHUNKED_REQUEST,
    CLOSING_REQUEST,
    ECHO_SOURCE,
    STATUS_LINE_PATTERN,
    VALID_REQUEST,
    FrameworkProcess,
    exchange,
    running_framework,
    temporary_socket_dir,
)

FULL_REQUEST = (
    b"POST /invoke HTTP/1.1\r\nGpu-Runtime-Invocation-Id: inv-1\r\nGpu-Runtime-Deadline: 2999-01-01T00:00:00.000Z\r\n"
    b'Gpu-Runtime-Attempt: 1\r\nGpu-Runtime-Attributes: {"a":"b"}\r\nGpu-Runtime-Header-A%20b: c%00\r\n'
    b"Content-Type: application/problem+json\r\nContent-Length: 2\r\n\r\n{}"
)


def request_with_header(name: str, value: str) -> bytes:
    head = f"POST /invoke HTTP/1.1\r\nGpu-Runtime-{name}: {value}\r\nContent-Length: 0\r\n\r\n"
    return head.encode(errors="replace")


NAMES = st.sampled_from(["Invocation-Id", "Deadline", "Attempt", "Attributes", "Header-X"])
REQUESTS = st.one_of(
    mutated_bytes(
        [
            VALID_REQUEST,
            CHUNKED_REQUEST,
            FULL_REQUEST,
            CLOSING_REQUEST,
            VALID_REQUEST + VALID_REQUEST,
            FULL_REQUEST + CHUNKED_REQUEST,
        ]
    ),
    st.builds(request_with_header, NAMES, texts()),
    deeply_nested().map(
        lambda body: VALID_REQUEST.partition(b"Content-Length")[0] + b"Content-Length: %d\r\n\r\n" % len(body) + body
    ),
    st.binary(max_size=300),
)


@pytest.fixture(scope="module")
def framework() -> Iterator[FrameworkProcess]:
    with (
        temporary_socket_dir() as socket_dir,
        running_framework(
            ECHO_SOURCE, socket_dir, GPU_RUNTIME_CONCURRENCY="4", GPU_RUNTIME_MAX_BODY_BYTES="100000"
        ) as running,
    ):
        yield running


def open_files(running: FrameworkProcess) -> int:
    return len(list(Path(f"/proc/{running.process.pid}/fd").iterdir()))


def test_random_requests_never_crash_or_hang_the_framework(framework: FrameworkProcess) -> None:
    open_before = open_files(framework)
    requests_are_answered(framework)
    assert framework.invoke({"n": 1}).json == {"n": 1}
    assert "this is a bug in gpu_runtime.framework" not in framework.log
    assert "Traceback" not in framework.log
    wait_until(lambda: open_files(framework) <= open_before, 10, lambda: "connections stay open")


@fuzzed(300)
@given(REQUESTS)
@example(request_with_header("Deadline", "0001-01-01T00:00:00+23:59"))
@example(request_with_header("Deadline", "9999-12-31T23:59:59-23:59"))
@example(request_with_header("Attempt", "9" * 5000))
def requests_are_answered(framework: FrameworkProcess, data: bytes) -> None:
    """The echo handler cannot fail, so no response is a 5xx, except a 504 for a deadline in the past."""
    response = exchange(framework.socket, data, half_close=True)
    assert response == b"" or response.startswith(b"HTTP/1.1 ")
    assert not {int(status) for status in STATUS_LINE_PATTERN.findall(response)} & {500, 501, 502, 503, 505}


RESPONSES = (
    b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 503 No\r\nTransfer-Encoding: chunked\r\nRetry-After: 1\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b'HTTP/1.1 500 No\r\nContent-Type: application/json\r\n\r\n{"error": {"type": "ValueError", "message": "no"}}',
    b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nSet-Cookie: a=b; expires=x\r\nLocation: ://\r\nLink: <\r\n\r\n",
    b"HTTP/1.1 301 Moved\r\nLocation: http://[\r\nContent-Length: 0\r\n\r\n",
)


class UnusualFramework:
    """Reads an invocation, writes the configured response, and closes the connection."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.response = b""

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await reader.readuntil(b"\r\n\r\n")
            writer.write(self.response)
        finally:
            writer.close()

    async def outcomes_of(self, response: bytes) -> tuple[str | None, FrameworkOutcome]:
        """How the sidecar interprets this response: to its health check, and to an invocation."""
        self.response = response
        async with FrameworkClient(str(self.path), "/invoke", "/healthz", 1000) as client:
            now = datetime.now(UTC)
            invocation = Invocation(
                invocation_id="inv-1", serverless_request_id="f", function_id="f", timeout_seconds=5
            )
            dispatch = Dispatch(invocation=invocation, deadline=now + timedelta(seconds=5), dispatched_at=now)
            with client.response_slot() as slot:
                return await client.check_health(), await client.invoke(dispatch, slot)


@pytest.fixture(scope="module")
def loop_thread() -> Iterator[LoopThread]:
    with LoopThread() as running:
        yield running


@pytest.fixture(scope="module")
def unusual_framework(loop_thread: LoopThread) -> Iterator[UnusualFramework]:
    with temporary_socket_dir() as socket_dir:
        unusual = UnusualFramework(socket_dir / "odd.sock")

        async def listening() -> asyncio.Server:
            return await asyncio.start_unix_server(unusual.serve, unusual.path)

        server = loop_thread.call(listening())
        yield unusual
        server.close()


@fuzzed(100)
@given(st.one_of(mutated_bytes(RESPONSES), st.binary(max_size=100)))
def test_random_responses_result_in_a_retry_decision(
    loop_thread: LoopThread, unusual_framework: UnusualFramework, response: bytes
) -> None:
    """No response raises an exception or takes much longer than the deadline."""
    problem, outcome = loop_thread.call(unusual_framework.outcomes_of(response), timeout_seconds=10)
    assert problem is None or problem
    assert isinstance(disposition_of(outcome), FinishInvocation | RetryInvocation)
