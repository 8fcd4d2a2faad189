"""The client of `localcluster.supervisor`: a cluster's processes as its owner sees them."""

import contextlib
import json
import os
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

from localcluster.paths import PROJECT_ROOT


class ProcessFailed(Exception):
    """A process of the cluster did not do its part; the message carries the end of its log."""


@dataclass(frozen=True)
class ProcessStatus:
    """What the supervisor says of one process."""

    name: str
    pid: int | None
    should_run: bool
    restarts: int
    last_exit_code: int | None
    log: str


class SupervisorClient:
    def __init__(self, state: Path) -> None:
        self.logs = state / "logs"
        self._socket = state / "supervisor.sock"
        self._supervisor: subprocess.Popen[bytes] | None = None

    def launch(self, wrap: Sequence[str] = (), *, die_with_parent: bool, fds: Sequence[int] = ()) -> None:
        """Start the supervisor, inside whatever the wrapping command makes.

        An owned cluster dies with the process that launched it, even if that one is killed.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        tie = ["setpriv", "--pdeathsig", "KILL", "--"] if die_with_parent else []
        supervisor = [sys.executable, "-P", "-m", "localcluster.supervisor", self._socket.name]
        with (self.logs / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*tie, *wrap, *supervisor],
                cwd=self._socket.parent,  # a socket's path may have 108 characters at most, so it is given relatively
                env=os.environ | {"PYTHONPATH": str(PROJECT_ROOT)},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=fds,
                start_new_session=True,
            )
        wait_until(self.is_alive, 60, lambda: f"the supervisor did not start\n{tail_log(self.logs / 'supervisor.log')}")

    def is_alive(self) -> bool:
        try:
            self._request({"op": "list"})
        except OSError:
            return False
        return True

    def supervisor_pid(self) -> int:
        """The supervisor's process id as seen from here, whatever namespace it lives in."""
        with self._connect() as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def start(
        self, name: str, argv: Sequence[str | Path], *, env: dict[str, str] | None = None, fds: Sequence[int] = ()
    ) -> None:
        command = [str(word) for word in argv]
        log = str(self.logs / f"{name}.log")
        self._request({"op": "start", "name": name, "argv": command, "env": env or {}, "log": log, "fds": list(fds)})

    def stop(self, name: str, number: Signals = Signals.SIGKILL, timeout: float = 60) -> None:
        """Stop a process and keep it down until it is started again."""
        self._request({"op": "stop", "name": name, "signal": int(number)})
        wait_until(lambda: self.get(name).pid is None, timeout, lambda: f"{name} did not end on {number.name}")

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal; a process that ends of it is started again."""
        self._request({"op": "signal", "name": name, "signal": int(number)})

    def signal_supervisor(self, number: Signals) -> None:
        """What an accident does to the cluster as a whole."""
        os.kill(self.supervisor_pid(), number)

    def list(self) -> list[ProcessStatus]:
        return [ProcessStatus(**entry) for entry in self._request({"op": "list"})["processes"]]

    def get(self, name: str) -> ProcessStatus:
        return next(process for process in self.list() if process.name == name)

    def wait_for(self, name: str, ready: Callable[[], bool], timeout: float = 60) -> None:
        def explain() -> str:
            return f"{name} was not ready within {timeout:.0f} s\n{tail_log(self.logs / f'{name}.log')}"

        wait_until(ready, timeout, explain)

    def shutdown(self, timeout: float = 30) -> None:
        """Cut the power. Returns when the supervisor, and so everything it held, is gone."""
        with contextlib.suppress(OSError):
            _terminate(self.supervisor_pid(), timeout)
        if self._supervisor is not None:  # which may not have come as far as listening
            self._supervisor.kill()
            self._supervisor.wait(timeout)
            self._supervisor = None
        self._socket.unlink(missing_ok=True)

    def _connect(self) -> socket.socket:
        folder = os.open(self._socket.parent, os.O_PATH | os.O_DIRECTORY)
        connection = socket.socket(socket.AF_UNIX)
        connection.settimeout(30)
        try:
            connection.connect(f"/proc/self/fd/{folder}/{self._socket.name}")
        except OSError:
            connection.close()
            raise
        finally:
            os.close(folder)
        return connection

    def _request(self, request: dict[str, Any]) -> dict[str, Any]:
        with self._connect() as connection, connection.makefile("rwb") as stream:
            stream.write(json.dumps(request).encode() + b"\n")
            stream.flush()
            line = stream.readline()
        if not line:
            raise ConnectionError("the supervisor closed the connection")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise ProcessFailed(answer["error"])
        return answer


def wait_until(
    condition: Callable[[], bool], timeout: float, explain: Callable[[], str], interval_seconds: float = 0.02
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise ProcessFailed(explain())
        time.sleep(interval_seconds)


def _terminate(pid: int, timeout: float) -> None:
    for number in (Signals.SIGTERM, Signals.SIGKILL):  # a process that was paused, or hangs, still obeys the second
        with contextlib.suppress(ProcessFailed):
            os.kill(pid, number)
            return wait_until(lambda: not process_exists(pid), timeout, lambda: "")
    raise ProcessFailed(f"the supervisor (process {pid}) does not end")


def process_exists(pid: int) -> bool:
    """Whether a process runs; one that is only waiting to be reaped does not."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state != "Z"


def tail_log(log: Path, lines: int = 15) -> str:
    try:
        return "\n".join(log.read_text(errors="replace").splitlines()[-lines:])
    except FileNotFoundError:
        return f"(no log at {log})"
