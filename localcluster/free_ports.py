"""Chooses free TCP ports for servers that start later.

A port stays reserved until the process that received it ends. Otherwise two servers that start at the same time would
sometimes receive the same port, in one process or in two test processes that run in parallel.
"""

import fcntl
import os
import secrets
import socket
import tempfile
from contextlib import closing, suppress
from functools import cache
from pathlib import Path

_reserved: set[int] = set()
"""The ports of this process. A file lock does not exclude the process that holds it."""


def free_port() -> int:
    """Return a TCP port that has no listener, is not reserved and is outside the range of ephemeral ports.

    The kernel gives ephemeral ports to outgoing connections. A server that starts later, or restarts, would sometimes
    find such a port in use by a connection of another process.
    """
    first_ephemeral = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    candidates = range(10_000, min(30_000, first_ephemeral)) or range(10_000, 65_536)
    while True:
        port = secrets.choice(candidates)
        if _reserve(port) and _can_bind(port):
            return port


def _reserve(port: int) -> bool:
    if port in _reserved:
        return False
    try:
        fcntl.lockf(_lock_file(), fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except OSError:  # another process has reserved the port
        return False
    _reserved.add(port)
    return True


@cache
def _lock_file() -> int:
    """Return a descriptor that stays open: the locks end when the process closes the file. Byte n is port n."""
    path = Path(tempfile.gettempdir()) / f"localcluster-ports-{os.getuid()}.lock"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _can_bind(port: int) -> bool:
    with closing(socket.socket()) as probe, suppress(OSError):
        probe.bind(("127.0.0.1", port))
        return True
    return False
