"""A NATS client that writes the protocol directly: the product's client rejects many messages that others can send."""

import itertools
import json
import secrets
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlsplit

from localcluster.nats_server import NatsAccount


class RawNats:
    def __init__(self, connection: socket.socket, account: NatsAccount) -> None:
        self._connection = connection
        self._stream = connection.makefile("rwb")
        self._inbox, self._numbers = f"_INBOX.{secrets.token_hex(8)}", itertools.count()
        self._stream.readline()
        login = urlsplit(account.url)
        connect = {
            "user": login.username,
            "pass": login.password,
            "verbose": False,
            "headers": True,
            "no_responders": True,
        }
        self._write(f"CONNECT {json.dumps(connect)}\r\nSUB {self._inbox}.* 1\r\n".encode())
        self.flush()

    def publish(self, subject: str, data: bytes, headers: bytes = b"", reply: str = "") -> None:
        """Publish a message. `headers` are raw header lines, without the version line and the final empty line."""
        subjects = f"{subject} {reply}" if reply else subject
        if not headers:
            self._write(f"PUB {subjects} {len(data)}\r\n".encode() + data + b"\r\n")
            return
        block = b"NATS/1.0\r\n" + headers + b"\r\n\r\n"
        self._write(f"HPUB {subjects} {len(block)} {len(block) + len(data)}\r\n".encode() + block + data + b"\r\n")

    def flush(self) -> None:
        """Wait until the server has processed all messages. Raises AssertionError if it rejected one."""
        self._write(b"PING\r\n")
        while not (line := self._line()).startswith(b"PONG"):
            self._skip(line)

    def jetstream_request(self, command: str, body: Any = None) -> dict[str, Any]:
        """Send a request to the JetStream API and return its response."""
        reply = f"{self._inbox}.{next(self._numbers)}"
        self.publish(f"$JS.API.{command}", json.dumps(body).encode() if body is not None else b"", reply=reply)
        while True:
            line = self._line()
            parts = line.split()
            if parts[:2] == [b"MSG", reply.encode()]:
                return dict(json.loads(self._stream.read(int(parts[-1]) + 2)))
            self._skip(line)

    def _skip(self, line: bytes) -> None:
        if line.startswith((b"MSG", b"HMSG")):
            self._stream.read(int(line.split()[-1]) + 2)

    def _line(self) -> bytes:
        line = self._stream.readline()
        if line.startswith(b"PING"):
            self._write(b"PONG\r\n")
        assert line, "the server closed the connection"
        assert not line.startswith(b"-ERR"), line
        return line

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._stream.flush()


@contextmanager
def raw_nats(account: NatsAccount) -> Iterator[RawNats]:
    server = urlsplit(account.url)
    with socket.create_connection((server.hostname or "", server.port or 0), timeout=30) as connection:
        yield RawNats(connection, account)
