"""Supervises the processes of one cluster: starts them, restarts those that exit, and kills all of them when it exits.

A separate program: `python -m localcluster.supervisor SOCKET`. For a node it is process 1 of the node's namespaces:
it also reaps orphaned processes, and the kernel kills all processes of the namespaces when it exits. Outside of
namespaces, its children ask the kernel to kill them when the supervisor exits. The client is
`localcluster.supervisor_client`. A request is one line of JSON, and so is the response.

The supervisor kills its processes with SIGKILL, without a graceful shutdown. All of them must survive a crash, and
every stop of a cluster tests this.
"""

import contextlib
import ctypes
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

INITIAL_BACKOFF_SECONDS = 0.1
MAX_BACKOFF_SECONDS = 5.0
BACKOFF_RESET_SECONDS = 10.0
NOT_STARTED_EXIT_CODE = 127
"""The exit code of a process that could not be started, as in shells."""
LIBC = ctypes.CDLL(None, use_errno=True)
PR_SET_PDEATHSIG = 1
"""The option of prctl(2) that sets the signal a process gets when its parent exits."""


@dataclass
class SupervisedProcess:
    name: str
    argv: list[str]
    log: str
    env: dict[str, str] = field(default_factory=dict)
    cwd: str | None = None
    fds: list[int] = field(default_factory=list)
    should_run: bool = True
    pid: int | None = None
    started_at: float = 0.0
    restarts: int = 0
    backoff_seconds: float = INITIAL_BACKOFF_SECONDS
    restart_at: float = 0.0
    last_exit_code: int | None = None

    def spawn(self) -> None:
        self.started_at = time.monotonic()
        with Path(self.log).open("ab") as log:
            try:
                process = self._popen(log)
            except OSError as error:
                log.write(f"{error}\n".encode())
                self.record_exit(NOT_STARTED_EXIT_CODE)
                return
        process.returncode = 0  # the waitpid call of the supervisor reaps the process, not Popen
        self.pid = process.pid

    def _popen(self, log: IO[bytes]) -> "subprocess.Popen[bytes]":
        return subprocess.Popen(
            self.argv,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=os.environ | self.env,
            cwd=self.cwd,
            pass_fds=self.fds,
            start_new_session=True,
            preexec_fn=functools.partial(kill_on_parent_death, os.getpid()),  # noqa: PLW1509 - only one thread
        )

    def record_exit(self, code: int) -> None:
        was_stable = time.monotonic() - self.started_at > BACKOFF_RESET_SECONDS
        next_backoff = min(self.backoff_seconds * 2, MAX_BACKOFF_SECONDS)
        self.backoff_seconds = INITIAL_BACKOFF_SECONDS if was_stable else next_backoff
        self.pid, self.last_exit_code, self.restart_at = None, code, time.monotonic() + self.backoff_seconds
        self.restarts += 1


def kill_on_parent_death(parent: int) -> None:
    """Ask the kernel to kill this process when its parent exits. Exit now if the parent has exited already."""
    if LIBC.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL)) != 0 or os.getppid() != parent:
        os._exit(NOT_STARTED_EXIT_CODE)


class Supervisor:
    def __init__(self, path: str) -> None:
        self.children: dict[str, SupervisedProcess] = {}
        self.selector = selectors.DefaultSelector()
        self.server = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            Path(path).unlink()
        self.server.bind(path)
        self.server.listen(16)
        self.selector.register(self.server, selectors.EVENT_READ)
        self.wakeup, wakeup_writer = socket.socketpair()
        wakeup_writer.setblocking(False)
        self.wakeup.setblocking(False)
        self.selector.register(self.wakeup, selectors.EVENT_READ)
        signal.set_wakeup_fd(wakeup_writer.fileno(), warn_on_full_buffer=False)
        self._wakeup_writer = wakeup_writer
        signal.signal(signal.SIGCHLD, lambda *_: None)
        self.stopping = False
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._stop)

    def run(self) -> None:
        while not self.stopping:
            for key, _ in self.selector.select(self._seconds_until_restart()):
                if key.fileobj is self.server:
                    self._serve_request()
                else:
                    self._read_wakeups()
            self._reap()
            self._restart_due()
        for child in self.children.values():
            if child.pid:
                os.kill(child.pid, signal.SIGKILL)
                os.waitpid(child.pid, 0)

    def _stop(self, *_: object) -> None:
        self.stopping = True

    def _seconds_until_restart(self) -> float | None:
        restarts = [child.restart_at for child in self.children.values() if child.should_run and child.pid is None]
        return max(0.0, min(restarts) - time.monotonic()) if restarts else None

    def _read_wakeups(self) -> None:
        with contextlib.suppress(BlockingIOError):
            while self.wakeup.recv(4096):
                pass

    def _reap(self) -> None:
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return
            if pid == 0:
                return
            for child in self.children.values():
                if child.pid == pid:
                    child.record_exit(os.waitstatus_to_exitcode(status))

    def _restart_due(self) -> None:
        for child in self.children.values():
            if child.should_run and child.pid is None and child.restart_at <= time.monotonic():
                child.spawn()

    def _serve_request(self) -> None:
        connection, _ = self.server.accept()
        with connection, connection.makefile("rb") as stream:
            connection.settimeout(5)
            try:
                response = self._handle(json.loads(stream.readline()))
            except (OSError, ValueError, KeyError, TypeError) as error:
                response = {"error": f"{type(error).__name__}: {error}"}
            with contextlib.suppress(OSError):  # the client may have disconnected
                connection.sendall(json.dumps(response).encode() + b"\n")

    def _handle(self, request: dict[str, Any]) -> dict[str, Any]:
        match request.pop("op"):
            case "start":
                self._start(SupervisedProcess(**request))
            case "stop":
                child = self.children[request["name"]]
                child.should_run = False
                if child.pid:
                    os.kill(child.pid, signal.Signals(request["signal"]))
            case "signal":
                child = self.children[request["name"]]
                if child.pid is None:
                    raise ValueError(f"{child.name} is not running")
                os.kill(child.pid, signal.Signals(request["signal"]))
            case "list":
                return {"processes": [self._describe(child) for child in self.children.values()]}
            case unknown:
                raise ValueError(f"unknown operation {unknown!r}")
        return {}

    def _start(self, child: SupervisedProcess) -> None:
        existing = self.children.get(child.name)
        if existing and existing.pid:
            if existing.should_run and existing.argv == child.argv:
                return
            raise ValueError(f"{child.name} is already running; stop it first")
        child.spawn()
        self.children[child.name] = child

    @staticmethod
    def _describe(child: SupervisedProcess) -> dict[str, Any]:
        return {
            "name": child.name,
            "pid": child.pid,
            "should_run": child.should_run,
            "restarts": child.restarts,
            "last_exit_code": child.last_exit_code,
            "log": child.log,
        }


if __name__ == "__main__":
    Supervisor(sys.argv[1]).run()
