"""A free port stays free until the process that will use it starts."""

import socket
import subprocess
import sys
from pathlib import Path

from localcluster.free_ports import free_port

COUNT_RESERVABLE = """
import sys
from localcluster.free_ports import _reserve
print(sum(_reserve(int(port)) for port in sys.argv[1:]))
"""


def test_free_port_is_outside_the_ephemeral_range() -> None:
    first, last = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    ports = {free_port() for _ in range(100)}
    assert first <= 10_000 or not any(first <= port <= last for port in ports)
    assert len(ports) == 100, "a port was returned twice"


def test_free_port_can_be_bound() -> None:
    port = free_port()
    with socket.socket() as other:
        other.bind(("127.0.0.1", port))


def test_other_process_cannot_reserve_the_same_port() -> None:
    ports = [str(free_port()) for _ in range(20)]
    arguments = [sys.executable, "-c", COUNT_RESERVABLE, *ports]
    other = subprocess.run(arguments, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert other.stdout.strip() == "0"
