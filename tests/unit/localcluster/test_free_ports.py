"""A free port stays free until the process that will use it starts."""

import socket
from pathlib import Path

from localcluster.control_plane import free_port


def test_free_port_is_outside_the_ephemeral_range() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(100)}
    assert first <= 10_000 or not any(first <= port <= last for port in ports)
    assert len(ports) > 90, "concurrent callers must get different ports"


def test_free_port_can_be_bound() -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))
