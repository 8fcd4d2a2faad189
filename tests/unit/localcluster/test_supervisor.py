"""The supervisor keeps what it was given running, keeps down what it was told to, and takes all of it along."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import scratch
from localcluster.supervisor import NOT_STARTED
from localcluster.supervisor_client import Processes, ProcessFailed, exists, wait_until


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    held = Processes(tmp_path)
    held.launch(owned=True)
    yield held
    held.shutdown()


def pid(processes: Processes, name: str) -> int:
    found = processes.get(name).pid
    assert found is not None
    return found


def test_what_ends_by_itself_is_started_again(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.signal("sleeper", signal.SIGKILL)
    wait_until(lambda: processes.get("sleeper").pid not in (None, first), 60, lambda: "not restarted")
    assert processes.get("sleeper").restarts == 1
    assert processes.get("sleeper").last_exit == -signal.SIGKILL


def test_what_was_stopped_stays_down_until_it_is_started(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.stop("sleeper")
    assert not exists(first)
    assert processes.get("sleeper").pid is None
    processes.start("sleeper", ["sleep", "600"])
    assert pid(processes, "sleeper") != first


def test_what_ends_at_once_is_tried_less_and_less_often(processes: Processes) -> None:
    processes.start("broken", ["false"])
    wait_until(lambda: processes.get("broken").restarts >= 3, 60, lambda: "not tried again")
    assert processes.get("broken").last_exit == 1


def test_starting_twice_is_starting_once(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.start("sleeper", ["sleep", "600"])
    assert pid(processes, "sleeper") == first
    with pytest.raises(ProcessFailed, match="stop it first"):
        processes.start("sleeper", ["sleep", "601"])


def test_a_program_that_is_not_there_is_an_error_not_an_end(processes: Processes) -> None:
    processes.start("nothing", ["/no/such/program"])
    wait_until(lambda: processes.get("nothing").last_exit is not None, 60, lambda: "no exit was seen")
    assert processes.alive()


@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b"{}\n", b"[1]\n", b'{"op": "fly"}\n', b'{"op": "stop", "name": "x"}\n']
)
def test_garbage_does_not_end_it(processes: Processes, garbage: bytes) -> None:
    with processes._connect() as connection:
        connection.sendall(garbage)
    assert processes.alive()


def test_its_end_is_the_end_of_all(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    held, supervisor = pid(processes, "sleeper"), processes.supervisor_pid()
    processes.shutdown()
    assert not exists(held)
    assert not exists(supervisor)
    assert not processes.alive()


def test_its_violent_end_is_the_end_of_all(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    held = pid(processes, "sleeper")
    processes.signal_supervisor(signal.SIGKILL)
    wait_until(lambda: not exists(held), 60, lambda: "a child outlives its killed supervisor")


def test_a_child_whose_parent_died_before_it_was_tied_to_it_ends_by_itself() -> None:
    """However busy the machine is, and however soon after its start a supervisor is killed."""
    tied = "import os, sys; from localcluster.supervisor import die_with; die_with(os.getppid() + int(sys.argv[1]))"
    ends = [subprocess.run([sys.executable, "-c", tied, stranger], check=False).returncode for stranger in ("0", "1")]
    assert ends == [0, NOT_STARTED]


def test_a_paused_one_can_still_be_ended(processes: Processes) -> None:
    processes.start("sleeper", ["sleep", "600"])
    held = pid(processes, "sleeper")
    processes.signal_supervisor(signal.SIGSTOP)
    processes.shutdown(timeout=0.5)
    wait_until(lambda: not exists(held), 60, lambda: "a child outlives its supervisor")


def test_a_folder_whose_owner_died_is_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("localcluster.paths.LOCAL", tmp_path)
    orphan = tmp_path / "things" / "orphan"
    orphan.mkdir(parents=True)
    with scratch("things") as mine:
        assert not orphan.exists()
        with scratch("things") as yours:
            assert mine.exists()
            assert yours.exists()
    assert not mine.exists()


def test_logs_are_kept(processes: Processes) -> None:
    processes.start("speaker", [sys.executable, "-c", "print('heard')"])
    log = Path(processes.get("speaker").log)
    wait_until(lambda: log.exists() and "heard" in log.read_text(), 60, lambda: "nothing in the log")
    assert time.time() - log.stat().st_mtime < 60
