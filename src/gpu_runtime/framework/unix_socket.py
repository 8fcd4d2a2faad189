"""The unix socket: open to every user of the pod, replacing what a killed predecessor left behind."""

import contextlib
import os
import socket
import stat
from dataclasses import dataclass

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.settings import SOCKET_VARIABLE

LISTEN_BACKLOG = 1024


@dataclass(frozen=True)
class UnixSocketListener:
    socket: socket.socket
    path: str
    device_and_inode: tuple[int, int]

    def unlink(self) -> None:
        """Take our own name away; one that a successor has put in its place stays."""
        with contextlib.suppress(OSError):
            if _device_and_inode(self.path) == self.device_and_inode:
                os.unlink(self.path)  # noqa: PTH108 - the whole of this module speaks to the system


def listen(path: str) -> UnixSocketListener:
    """The sidecar runs as another user, so everybody may connect. The directory decides who gets that far."""
    try:
        _remove_stale_socket(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            os.chmod(path, 0o666)  # noqa: S103, PTH101
            listening.listen(LISTEN_BACKLOG)
            listening.setblocking(False)
            return UnixSocketListener(listening, path, _device_and_inode(path))
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise CannotServe(
            f"cannot listen at {path}: {error.strerror}; {SOCKET_VARIABLE} names another place"
        ) from error


def _remove_stale_socket(path: str) -> None:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotServe(f"{path} is there already and no socket; {SOCKET_VARIABLE} names another place")
    if _accepts_connections(path):
        raise CannotServe(f"another process serves at {path}; {SOCKET_VARIABLE} names another place")
    os.unlink(path)  # noqa: PTH108


def _accepts_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # its queue is full, so it has one
            return True
        return True


def _device_and_inode(path: str) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    return status.st_dev, status.st_ino
