"""The forwarder passes on what it gets, and is not what cuts a request while the pods behind a Service change."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localcluster.control_plane import free_port
from localcluster.paths import PROJECT_ROOT


@contextmanager
def forwarder(port: int) -> Iterator[tuple[str, int]]:
    """Where it accepts what is to reach that port of this machine."""
    with socket.socket() as accepting:
        accepting.bind(("127.0.0.1", 0))
        accepting.listen()
        route = f"{accepting.fileno()}=127.0.0.1:{port}"
        command = [sys.executable, "-m", "localcluster.forwarder", route]
        running = subprocess.Popen(command, pass_fds=[accepting.fileno()], cwd=PROJECT_ROOT)
        try:
            yield accepting.getsockname()
        finally:
            running.kill()
            running.wait(60)


def server(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.bind(("127.0.0.1", port))
    made.listen()
    made.settimeout(60)
    return made


def send_all(connection: socket.socket, what: bytes) -> None:
    connection.sendall(what)
    connection.shutdown(socket.SHUT_WR)


def receive_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_connection_without_a_backend_waits_for_the_next_backend() -> None:
    port = free_port()
    with forwarder(port) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(b"question")
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):  # neither an answer nor an end
            client.recv(1)
        with server(port) as listening:
            client.settimeout(60)
            pod, _ = listening.accept()
            with pod:
                assert pod.recv(100) == b"question"
                pod.sendall(b"answer")
                assert client.recv(100) == b"answer"


def test_data_sent_before_a_half_close_arrives_on_both_sides() -> None:
    port, much = free_port(), b"x" * 3_000_000
    with server(port) as listening, forwarder(port) as address, socket.create_connection(address, timeout=60) as client:
        pod, _ = listening.accept()
        with pod:
            pod.settimeout(10)
            sending = threading.Thread(target=send_all, args=(client, much))
            sending.start()
            assert receive_all(pod) == much
            sending.join()
            pod.sendall(much)
        assert receive_all(client) == much
