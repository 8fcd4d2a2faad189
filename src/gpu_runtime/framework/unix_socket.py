"""The unix socket: open to every user of the pod, replacing what a killed predecessor left behind."""

import contextlib
import os
import socket
import stat
from dataclasses import dataclass

from gpu_runtime.framework.errors import CannotServe
from gpu_runtime.framework.settings import SOCKET

BACKLOG = 1024


@dataclass(frozen=True)
class Listener:
    socket: socket.socket
    path: str
    identity: tuple[int, int]

    def withdraw(self) -> None:
        """Take our own name away; one that a successor has put in its place stays."""
        with contextlib.suppress(OSError):
            if _identity(self.path) == self.identity:
                os.unlink(self.path)  # noqa: PTH108 - the whole of this module speaks to the system


def listen(path: str) -> Listener:
    """The sidecar runs as another user, so everybody may connect. The directory decides who gets that far."""
    try:
        _clear(path)
        listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            listening.bind(path)
            os.chmod(path, 0o666)  # noqa: S103, PTH101
            listening.listen(BACKLOG)
            listening.setblocking(False)
            return Listener(listening, path, _identity(path))
        except OSError:
            listening.close()
            raise
    except OSError as error:
        raise CannotServe(f"cannot listen at {path}: {error.strerror}; {SOCKET} names another place") from error


def _clear(path: str) -> None:
    try:
        mode = os.stat(path, follow_symlinks=False).st_mode  # noqa: PTH116
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise CannotServe(f"{path} is there already and no socket; {SOCKET} names another place")
    if _answers(path):
        raise CannotServe(f"another process serves at {path}; {SOCKET} names another place")
    os.unlink(path)  # noqa: PTH108


def _answers(path: str) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.setblocking(False)
        try:
            probe.connect(path)
        except ConnectionRefusedError:
            return False
        except BlockingIOError:  # its queue is full, so it has one
            return True
        return True


def _identity(path: str) -> tuple[int, int]:
    status = os.stat(path, follow_symlinks=False)  # noqa: PTH116
    return status.st_dev, status.st_ino
