"""A process stops on a signal: gracefully if its work ends in time, else by cancellation."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.process.runner import EXIT_FAILED, EXIT_INVALID_SETTINGS, EXIT_OK, run_process, run_until_signal


def send_signal(received: signal.Signals) -> None:
    os.kill(os.getpid(), received)


@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGINT])
async def test_process_that_stops_on_a_signal_exits_with_0(received: signal.Signals) -> None:
    async def work(stopping: asyncio.Event) -> None:
        send_signal(received)
        await stopping.wait()

    assert await run_until_signal(work, shutdown_timeout=60) == EXIT_OK


async def test_process_is_cancelled_after_the_shutdown_timeout(caplog: pytest.LogCaptureFixture) -> None:
    async def work(_stopping: asyncio.Event) -> None:
        send_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    assert await run_until_signal(work, shutdown_timeout=0.01) == EXIT_FAILED
    expected = "graceful shutdown was not completed; the process has cancelled unfinished work and will exit"
    assert expected in caplog.messages


async def test_second_signal_cancels_immediately() -> None:
    async def work(stopping: asyncio.Event) -> None:
        send_signal(signal.SIGTERM)
        await stopping.wait()
        send_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    assert await asyncio.wait_for(run_until_signal(work, shutdown_timeout=60), timeout=50) == EXIT_FAILED


async def test_fault_is_logged_in_one_line_and_a_bug_with_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(_stopping: asyncio.Event) -> None:
        raise Unavailable("Kubernetes is away")

    async def buggy(_stopping: asyncio.Event) -> None:
        raise TimeoutError("of the work itself")

    assert await run_until_signal(faulty, shutdown_timeout=1) == EXIT_FAILED
    assert await run_until_signal(buggy, shutdown_timeout=1) == EXIT_FAILED
    fault, bug = caplog.records
    assert (fault.getMessage(), fault.exc_info) == ("process failed and will exit", None)
    assert fault.__dict__["error"] == "Kubernetes is away"
    assert bug.getMessage() == "process raised an unexpected exception and will exit"
    assert bug.exc_info


async def test_fault_in_a_task_group_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(_stopping: asyncio.Event) -> None:
        async with asyncio.TaskGroup(), asyncio.TaskGroup():
            raise Unavailable("Kubernetes is away")

    assert await run_until_signal(faulty, shutdown_timeout=1) == EXIT_FAILED
    [fault] = caplog.records
    assert (fault.getMessage(), fault.exc_info) == ("process failed and will exit", None)
    assert fault.__dict__["error"] == "Kubernetes is away"


def test_invalid_settings_exit_before_the_start(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def never(_settings: ControllerManagerSettings, _stopping: asyncio.Event) -> None:
        raise AssertionError

    (tmp_path / "bad.yaml").write_text("imags: {}")
    assert run_process(tmp_path / "bad.yaml", ControllerManagerSettings, never) == EXIT_INVALID_SETTINGS
    assert "imags is not a setting; did you mean images?" in capsys.readouterr().err
