"""A process ends when it is told to, orderly if it can and in time if it cannot."""

import asyncio
import os
import signal
from pathlib import Path

import pytest

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.controller_manager.settings import ControllerManagerSettings
from gpu_runtime.process.runner import FAILED, MISCONFIGURED, STOPPED, run_process, supervise


def tell(received: signal.Signals) -> None:
    os.kill(os.getpid(), received)


@pytest.mark.parametrize("received", [signal.SIGTERM, signal.SIGINT])
async def test_work_that_ends_when_told_is_a_success(received: signal.Signals) -> None:
    async def work(stopping: asyncio.Event) -> None:
        tell(received)
        await stopping.wait()

    assert await supervise(work, grace=60) == STOPPED


async def test_work_that_outlasts_the_grace_is_cut_short(caplog: pytest.LogCaptureFixture) -> None:
    async def work(_stopping: asyncio.Event) -> None:
        tell(signal.SIGTERM)
        await asyncio.Event().wait()

    assert await supervise(work, grace=0.01) == FAILED
    assert "cut short" in caplog.text


async def test_a_second_signal_cuts_short_at_once() -> None:
    async def work(stopping: asyncio.Event) -> None:
        tell(signal.SIGTERM)
        await stopping.wait()
        tell(signal.SIGTERM)
        await asyncio.Event().wait()

    assert await asyncio.wait_for(supervise(work, grace=60), timeout=50) == FAILED


async def test_a_fault_is_one_line_and_a_bug_shows_its_traceback(caplog: pytest.LogCaptureFixture) -> None:
    async def faulty(_stopping: asyncio.Event) -> None:
        raise Unavailable("Kubernetes is away")

    async def buggy(_stopping: asyncio.Event) -> None:
        raise TimeoutError("of its own")

    assert await supervise(faulty, grace=1) == FAILED
    assert await supervise(buggy, grace=1) == FAILED
    fault, bug = caplog.records
    assert (fault.getMessage(), fault.exc_info) == ("Kubernetes is away", None)
    assert bug.exc_info


def test_bad_settings_end_a_process_before_it_begins(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    async def never(_settings: ControllerManagerSettings, _stopping: asyncio.Event) -> None:
        raise AssertionError

    (tmp_path / "bad.yaml").write_text("imags: {}")
    assert run_process(tmp_path / "bad.yaml", ControllerManagerSettings, never) == MISCONFIGURED
    assert "imags is not a setting; did you mean images?" in capsys.readouterr().err
