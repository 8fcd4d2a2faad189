"""The forwarder passes all data on, and does not fail requests while the pods of a Service are replaced."""

import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from localcluster.free_ports import free_port
from localcluster.paths import PROJECT_ROOT


@contextmanager
def forwarder(port: int) -> Iterator[tuple[str, int]]:
    """Run a forwarder to this port of 127.0.0.1, and return the address on which it accepts connections."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen()
        route = f"{listener.fileno()}=127.0.0.1:{port}"
        command = [sys.executable, "-m", "localcluster.forwarder", route]
        process = subprocess.Popen(command, pass_fds=[listener.fileno()], cwd=PROJECT_ROOT)
        try:
            yield listener.getsockname()
        finally:
            process.kill()
            process.wait(60)


def server(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    listener.listen()
    listener.settimeout(60)
    return listener


def send_all(connection: socket.socket, data: bytes) -> None:
    connection.sendall(data)
    connection.shutdown(socket.SHUT_WR)


def receive_all(connection: socket.socket) -> bytes:
    return b"".join(iter(lambda: connection.recv(65536), b""))


def test_connection_without_a_backend_waits_for_the_next_backend() -> None:
    port = free_port()
    with forwarder(port) as address, socket.create_connection(address, timeout=60) as client:
        client.sendall(b"question")
        client.settimeout(0.5)
        with pytest.raises(TimeoutError):  # neither data nor a close
            client.recv(1)
        with server(port) as listening:
            client.settimeout(60)
            pod, _ = listening.accept()
            with pod:
                assert pod.recv(100) == b"question"
                pod.sendall(b"answer")
                assert client.recv(100) == b"answer"


def test_data_sent_before_a_half_close_arrives_on_both_sides() -> None:
    port, data = free_port(), b"x" * 3_000_000
    with server(port) as listening, forwarder(port) as address, socket.create_connection(address, timeout=60) as client:
        pod, _ = listening.accept()
        with pod:
            pod.settimeout(10)
            sender = threading.Thread(target=send_all, args=(client, data))
            sender.start()
            assert receive_all(pod) == data
            sender.join()
            pod.sendall(data)
        assert receive_all(client) == data
