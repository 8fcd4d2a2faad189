"""The supervisor restarts exited processes, does not restart stopped ones, and kills all of them when it exits."""

import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from localcluster.paths import scratch_dir
from localcluster.supervisor import NOT_STARTED_EXIT_CODE
from localcluster.supervisor_client import ProcessFailed, SupervisorClient, process_exists, wait_until


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[SupervisorClient]:
    client = SupervisorClient(tmp_path)
    client.launch(die_with_parent=True)
    yield client
    client.shutdown()


def pid(processes: SupervisorClient, name: str) -> int:
    process_id = processes.get(name).pid
    assert process_id is not None
    return process_id


def test_exited_process_is_restarted(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.signal("sleeper", signal.SIGKILL)
    wait_until(lambda: processes.get("sleeper").pid not in (None, first), 60, lambda: "not restarted")
    assert processes.get("sleeper").restarts == 1
    assert processes.get("sleeper").last_exit_code == -signal.SIGKILL


def test_stopped_process_stays_down_until_it_is_started(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.stop("sleeper")
    assert not process_exists(first)
    assert processes.get("sleeper").pid is None
    processes.start("sleeper", ["sleep", "600"])
    assert pid(processes, "sleeper") != first


def test_crash_looping_process_is_restarted_with_backoff(processes: SupervisorClient) -> None:
    processes.start("broken", ["false"])
    wait_until(lambda: processes.get("broken").restarts >= 3, 60, lambda: "not restarted three times")
    assert processes.get("broken").last_exit_code == 1


def test_start_is_idempotent(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    first = pid(processes, "sleeper")
    processes.start("sleeper", ["sleep", "600"])
    assert pid(processes, "sleeper") == first
    with pytest.raises(ProcessFailed, match="stop it first"):
        processes.start("sleeper", ["sleep", "601"])


def test_missing_program_is_recorded_as_an_exit(processes: SupervisorClient) -> None:
    processes.start("nothing", ["/no/such/program"])
    wait_until(lambda: processes.get("nothing").last_exit_code is not None, 60, lambda: "no exit was recorded")
    assert processes.is_alive()


@pytest.mark.parametrize(
    "request_line", [b"", b"\n", b"{}\n", b"[1]\n", b'{"op": "fly"}\n', b'{"op": "stop", "name": "x"}\n']
)
def test_invalid_request_does_not_end_the_supervisor(processes: SupervisorClient, request_line: bytes) -> None:
    with processes._connect() as connection:
        connection.sendall(request_line)
    assert processes.is_alive()


def test_shutdown_ends_all_processes(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    child, supervisor = pid(processes, "sleeper"), processes.supervisor_pid()
    processes.shutdown()
    assert not process_exists(child)
    assert not process_exists(supervisor)
    assert not processes.is_alive()


def test_killed_supervisor_ends_all_processes(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    child = pid(processes, "sleeper")
    processes.signal_supervisor(signal.SIGKILL)
    wait_until(lambda: not process_exists(child), 60, lambda: "the child still runs after its supervisor was killed")


def test_child_of_a_supervisor_that_died_during_the_start_exits() -> None:
    """The child exits even if the supervisor is killed before the child has registered for the parent death signal."""
    program = (
        "import os, sys; from localcluster.supervisor import kill_on_parent_death as tie; "
        "tie(os.getppid() + int(sys.argv[1]))"
    )
    parent_offsets = ("0", "1")  # the real parent, and another process ID
    exit_codes = [
        subprocess.run([sys.executable, "-c", program, offset], check=False).returncode for offset in parent_offsets
    ]
    assert exit_codes == [0, NOT_STARTED_EXIT_CODE]


def test_shutdown_of_a_paused_supervisor_ends_all_processes(processes: SupervisorClient) -> None:
    processes.start("sleeper", ["sleep", "600"])
    child = pid(processes, "sleeper")
    processes.signal_supervisor(signal.SIGSTOP)
    processes.shutdown(timeout=0.5)
    wait_until(lambda: not process_exists(child), 60, lambda: "the child still runs after the shutdown")


def test_scratch_folder_of_a_dead_owner_is_removed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("localcluster.paths.LOCAL_STATE_DIR", tmp_path)
    orphan = tmp_path / "clusters" / "orphan"
    orphan.mkdir(parents=True)
    with scratch_dir("clusters") as first:
        assert not orphan.exists()
        with scratch_dir("clusters") as second:
            assert first.exists()
            assert second.exists()
    assert not first.exists()


def test_process_output_is_written_to_its_log(processes: SupervisorClient) -> None:
    processes.start("printer", [sys.executable, "-c", "print('some output')"])
    log = Path(processes.get("printer").log)
    wait_until(lambda: log.exists() and "some output" in log.read_text(), 60, lambda: "the log has no output")
    assert time.time() - log.stat().st_mtime < 60
