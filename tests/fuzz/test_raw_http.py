"""Raw bytes to the runtime API: it rejects them or disconnects, returns no 5xx, and serves the next caller."""

import re
import socket
from pathlib import Path

from hypothesis import example, given
from hypothesis import strategies as st

from localcluster.supervisor_client import wait_until
from tests.fuzz.fuzz_settings import fuzzed
from tests.fuzz.strategies import deeply_nested, mutated_bytes, texts
from tests.integration.runtime_api.edge.conftest import ApiProcess
from tests.integration.runtime_api.live_platform import TOKEN, LivePlatform

STATUS = re.compile(rb"HTTP/1\.[01] ([0-9]{3}) ")
AUTHENTICATED_HEADERS = f"Host: x\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
BODY = b'{"name":"s","size":"x"}'
LIST = b"GET /api/v1/gpu-units?limit=5 HTTP/1.1\r\n" + AUTHENTICATED_HEADERS + b"\r\n"
POST = b"POST /api/v1/gpu-storages HTTP/1.1\r\n" + AUTHENTICATED_HEADERS + b"Content-Type: application/json\r\n"
SIZED = POST + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n17\r\n" + BODY + b"\r\n0\r\nTrailer: 1\r\n\r\n"
CALL = (
    b"POST /api/v1/serverless/invocations HTTP/1.1\r\n" + AUTHENTICATED_HEADERS + b"Content-Type: application/json\r\n"
    b'Content-Length: 32\r\n\r\n{"serverlessRequestID":"absent"}'
)
SEEDS = (
    *(LIST, SIZED, CHUNKED, CALL, LIST + SIZED, SIZED + CHUNKED + LIST),
    b"DELETE /api/v1/gpu-units/none?namespace=runtime-instance HTTP/1.1\r\n"
    + AUTHENTICATED_HEADERS
    + b"Content-Length: 0\r\n\r\n",
    b"PUT /api/v1/gpu-storages/none HTTP/1.1\r\n"
    + AUTHENTICATED_HEADERS
    + b"Expect: 100-continue\r\nContent-Length: 2\r\n\r\n{}",
    b"GET /swagger/%2e%2e/index.html HTTP/1.0\r\nConnection: keep-alive\r\n\r\n",
    b"HEAD /healthz HTTP/1.1\r\nHost: x\r\nX-Request-ID: a\r\nConnection: upgrade\r\nUpgrade: websocket\r\n\r\n",
    b"GET /api/v1/operator/dead-letters?source=invoke&continue=WyJ4IiwiMSJd HTTP/1.1\r\n"
    + AUTHENTICATED_HEADERS
    + b"\r\n",
)


def request_bytes(method: str, target: str, header: str, value: str) -> bytes:
    return f"{method} {target} HTTP/1.1\r\nHost: x\r\n{header}: {value}\r\n\r\n".encode(errors="replace")


METHODS = st.sampled_from(["GET", "POST", "PUT", "DELETE", "PATCH", "OPTIONS", "TRACE", "CONNECT", "get", "\0", ""])
TARGETS = st.one_of(
    texts().map("/".__add__), texts(), texts().map("/api/v1/gpu-units/".__add__), st.just("http://x:y/")
)
HEADERS = st.sampled_from(
    ["Authorization", "Content-Length", "Content-Type", "Host", "Cookie", "X-Request-ID", "Accept"]
)
REQUESTS = st.one_of(
    mutated_bytes(SEEDS),
    st.builds(request_bytes, METHODS, TARGETS, HEADERS, texts()),
    deeply_nested().map(lambda body: POST + b"Content-Length: %d\r\n\r\n" % len(body) + body),
    st.binary(max_size=300),
)


def exchange(replica: ApiProcess, data: bytes) -> bytes:
    """Send the data, close the sending side, and return the response until the API disconnects."""
    with socket.create_connection(("127.0.0.1", replica.port), timeout=20) as connection:
        try:
            connection.sendall(data)
            connection.shutdown(socket.SHUT_WR)
            return b"".join(iter(lambda: connection.recv(65536), b""))
        except ConnectionError:
            return b""  # the API disconnected before all data was sent


def test_random_requests_never_crash_or_hang_the_api(platform: LivePlatform) -> None:
    replica = platform.shared_replicas[0]
    assert replica.process
    files = Path(f"/proc/{replica.process.pid}/fd")
    open_before = len(list(files.iterdir()))
    requests_are_answered(replica)
    assert replica.request("/api/v1/gpu-units", token=TOKEN).status == 200
    assert replica.process.poll() is None
    assert [line for line in replica.log_lines if line["level"] == "error"] == []
    wait_until(lambda: len(list(files.iterdir())) <= open_before + 4, 20, lambda: "connections stay open")


@fuzzed(300)
@given(REQUESTS)
@example(b"GET /" + b"a" * 100_000 + b" HTTP/1.1\r\n\r\n")
@example(LIST[:-2] + b"A: " + b"b" * 100_000 + b"\r\n\r\n")
@example(LIST[:-2] + b"A: b\r\n" * 20_000 + b"\r\n")
@example(CHUNKED.replace(b"17\r\n", b"F" * 40 + b"\r\n"))
@example(SIZED.replace(b"Content-Length: ", b"Content-Length: 9999999999999999999999"))
@example(SIZED.replace(b"Content-Type", b"Content-Encoding: deflate\r\nContent-Type"))
@example(SIZED.replace(b"Content-Type", b"Expect: 100-continue\r\nContent-Type"))
def requests_are_answered(replica: ApiProcess, data: bytes) -> None:
    statuses = [int(status) for status in STATUS.findall(exchange(replica, data))]
    assert not [status for status in statuses if status >= 500]
