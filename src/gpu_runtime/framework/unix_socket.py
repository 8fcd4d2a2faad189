"""Opens the unix socket. Every user in the pod can connect. A stale socket file of a killed process is replaced."""

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
    """A listening socket, with the identity of its socket file."""

    socket: socket.socket
    path: str
    device_and_inode: tuple[int, int]

    def unlink(self) -> None:
        """Remove the socket file, unless another process has replaced it."""
        with contextlib.suppress(OSError):
            if _device_and_inode(self.path) == self.device_and_inode:
                os.unlink(self.path)  # noqa: PTH108 - this module uses the os functions throughout


def listen(path: str) -> UnixSocketListener:
    """Listen on a unix socket with mode 0666. Raise CannotServe if that is not possible.

    The worker sidecar runs as another user, so every user can connect. The permissions of the directory limit the
    access.
    """
    try:
        _remove_stale_socket(path)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listener.bind(path)
            os.chmod(path, 0o666)  # noqa: S103, PTH101
            listener.listen(LISTEN_BACKLOG)
            listener.setblocking(False)
            return UnixSocketListener(listener, path, _device_and_inode(path))
        except OSError:
            listener.close()
            raise
    except OSError as error:
        raise CannotServe(
            f"cannot listen on {path}: {error.strerror}; set {SOCKET_VARIABLE} to another path"
        ) from error


def _remove_stale_socket(path: str) -> None:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotServe(f"{path} exists and is not a socket; set {SOCKET_VARIABLE} to another path")
    if _accepts_connections(path):
        raise CannotServe(f"another process listens on {path}; set {SOCKET_VARIABLE} to another path")
    os.unlink(path)  # noqa: PTH108


def _accepts_connections(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # the backlog is full, so another process listens
            return True
        return True


def _device_and_inode(path: str) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    return status.st_dev, status.st_ino
