"""The client of `localcluster.supervisor`: starts, signals, stops and lists the processes of a cluster."""

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
    """A process of the cluster failed or was not ready in time. The message contains the last lines of its log."""


@dataclass(frozen=True)
class ProcessStatus:
    """The state of one process, as reported by the supervisor."""

    name: str
    pid: int | None
    should_run: bool
    restarts: int
    last_exit_code: int | None
    log: str


class SupervisorClient:
    def __init__(self, state_dir: Path) -> None:
        self.logs = state_dir / "logs"
        self._socket = state_dir / "supervisor.sock"
        self._supervisor: subprocess.Popen[bytes] | None = None

    def launch(self, wrap: Sequence[str] = (), *, die_with_parent: bool, fds: Sequence[int] = ()) -> None:
        """Start the supervisor. `wrap` is a command that runs it, for example in new namespaces.

        With `die_with_parent`, the kernel kills the cluster when the process that launched it exits, even if that
        process is killed.
        """
        self.logs.mkdir(parents=True, exist_ok=True)
        self._socket.unlink(missing_ok=True)
        parent_death = ["setpriv", "--pdeathsig", "KILL", "--"] if die_with_parent else []
        supervisor = [sys.executable, "-P", "-m", "localcluster.supervisor", self._socket.name]
        with (self.logs / "supervisor.log").open("ab") as log:
            self._supervisor = subprocess.Popen(
                [*parent_death, *wrap, *supervisor],
                cwd=self._socket.parent,  # the path is relative, because a socket path has at most 108 characters
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
        """Return the process ID of the supervisor in this process's PID namespace."""
        with self._connect() as connection:
            credentials = connection.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
            pid: int = struct.unpack("3i", credentials)[0]
        return pid

    def start(
        self, name: str, argv: Sequence[str | Path], *, env: dict[str, str] | None = None, fds: Sequence[int] = ()
    ) -> None:
        command = [str(argument) for argument in argv]
        log = str(self.logs / f"{name}.log")
        self._request({"op": "start", "name": name, "argv": command, "env": env or {}, "log": log, "fds": list(fds)})

    def stop(self, name: str, number: Signals = Signals.SIGKILL, timeout: float = 60) -> None:
        """Stop a process. The supervisor does not restart it until `start` is called."""
        self._request({"op": "stop", "name": name, "signal": int(number)})
        wait_until(lambda: self.get(name).pid is None, timeout, lambda: f"{name} did not exit on {number.name}")

    def signal(self, name: str, number: Signals) -> None:
        """Send a signal. If the process exits, the supervisor restarts it."""
        self._request({"op": "signal", "name": name, "signal": int(number)})

    def signal_supervisor(self, number: Signals) -> None:
        """Send a signal to the supervisor, for example to simulate the loss of the whole cluster."""
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
        """Kill the cluster. Returns when the supervisor, and so all its processes, have exited."""
        with contextlib.suppress(OSError):
            _terminate(self.supervisor_pid(), timeout)
        if self._supervisor is not None:  # the supervisor may have failed before it listened on its socket
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
        response: dict[str, Any] = json.loads(line)
        if "error" in response:
            raise ProcessFailed(response["error"])
        return response


def wait_until(
    condition: Callable[[], bool], timeout: float, explain: Callable[[], str], interval_seconds: float = 0.02
) -> None:
    deadline = time.monotonic() + timeout
    while not condition():
        if time.monotonic() > deadline:
            raise ProcessFailed(explain())
        time.sleep(interval_seconds)


def _terminate(pid: int, timeout: float) -> None:
    for number in (Signals.SIGTERM, Signals.SIGKILL):  # SIGKILL also ends a stopped or hanging process
        with contextlib.suppress(ProcessFailed):
            os.kill(pid, number)
            return wait_until(lambda: not process_exists(pid), timeout, lambda: "")
    raise ProcessFailed(f"the supervisor (process {pid}) did not exit")


def process_exists(pid: int) -> bool:
    """Whether a process is running. A zombie process is not running."""
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
