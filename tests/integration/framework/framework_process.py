"""Starts the process of a user for tests, and gives access to its socket, its log and its exit code."""

import http.client
import json
import os
import re
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from localcluster.supervisor_client import wait_until

JSON = {"Content-Type": "application/json"}

ECHO_SOURCE = """
from gpu_runtime.framework import handler, serve
handler(lambda request: request.payload)
serve()
"""
VALID_REQUEST = (
    b'POST /invoke HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\nContent-Length: 7\r\n\r\n{"n":1}'
)
CHUNKED_REQUEST = (
    b"POST /invoke HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Type: a/b\r\n\r\n"
    b"3;x=y\r\nabc\r\nA\r\n0123456789\r\n0\r\nTrailer: 1\r\n\r\n"
)
CLOSING_REQUEST = b"GET /healthz HTTP/1.1\r\nConnection: close\r\n\r\n"
STATUS_LINE_PATTERN = re.compile(rb"HTTP/1\.1 ([0-9]{3}) ")


class UnixConnection(http.client.HTTPConnection):
    """An HTTP connection over a unix socket."""

    def __init__(self, path: str) -> None:
        super().__init__("framework", timeout=60)
        self._path = path

    def connect(self) -> None:
        self.sock = connect_unix(self._path)


@dataclass(frozen=True)
class FrameworkReply:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> tuple[str, str]:
        error = self.json["error"]
        assert set(self.json) == {"error"}
        assert set(error) == {"type", "message"}
        return error["type"], error["message"]


@dataclass
class FrameworkProcess:
    process: "subprocess.Popen[bytes]"
    socket: str
    log_file: Path

    @property
    def log(self) -> str:
        return self.log_file.read_text()

    def invoke(self, body: Any = None, headers: dict[str, str] | None = None, method: str = "POST") -> FrameworkReply:
        """Send an invocation: the body as JSON, or unchanged if the headers have a Content-Type."""
        data = body if headers is not None and "Content-Type" in headers else json.dumps(body).encode()
        return self.request(method, "/invoke", data, {**JSON, **(headers or {})})

    def request(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None
    ) -> FrameworkReply:
        connection = UnixConnection(self.socket)
        try:
            connection.request(method, path, body, headers or {})
            response = connection.getresponse()
            return FrameworkReply(response.status, dict(response.headers), response.read())
        finally:
            connection.close()


def connect_unix(path: str) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.settimeout(60)
    try:
        connection.connect(path)
    except OSError:
        connection.close()
        raise
    return connection


@contextmanager
def temporary_socket_dir() -> Iterator[Path]:
    """Create a directory for sockets. The directories of pytest may have paths that are too long for a socket."""
    with tempfile.TemporaryDirectory(prefix="fw-") as directory:
        yield Path(directory)


@contextmanager
def running_framework(
    source: str, directory: Path, wrap: Sequence[str] = (), **environment: str
) -> Iterator[FrameworkProcess]:
    """Run the source until the block ends. The block starts when the socket accepts connections."""
    with running_command([*wrap, sys.executable, "-c", source], directory, **environment) as running:
        yield running


@contextmanager
def running_command(command: Sequence[str], directory: Path, **environment: str) -> Iterator[FrameworkProcess]:
    path = environment.setdefault("GPU_RUNTIME_SOCKET", str(directory / "framework.sock"))
    log = directory / "log"
    with (
        log.open("ab") as stderr,
        subprocess.Popen(command, env={**os.environ, **environment}, stderr=stderr) as process,
    ):
        running = FrameworkProcess(process, path, log)
        try:
            wait_until(lambda: process.poll() is not None or is_listening(path), 60, lambda: running.log)
            yield running
        finally:
            process.kill()


def is_listening(path: str) -> bool:
    try:
        connect_unix(path).close()
    except OSError:
        return False
    return True


def exchange(path: str, data: bytes, half_close: bool = False) -> bytes:
    """Send these bytes and return all bytes received until the framework closes the connection."""
    with connect_unix(path) as connection:
        try:
            connection.sendall(data)
            if half_close:
                connection.shutdown(socket.SHUT_WR)
        except OSError:
            pass  # the framework rejected the request before all of it was sent; its response can be read
        return b"".join(iter(lambda: connection.recv(65536), b""))
