"""A process starts only with a valid key file, and uses the new keys when the file changes."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest

from gpu_runtime.activator.main import new_activator
from gpu_runtime.activator.settings import ActivatorSettings
from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.settings import InvalidSettings
from gpu_runtime.process.shared_settings import TicketSettings
from gpu_runtime.process.ticket_key_file import TicketKeyFile
from gpu_runtime.result_store.main import run_result_store
from gpu_runtime.result_store.settings import ResultStoreSettings
from gpu_runtime.runtime_api.main import run_runtime_api
from gpu_runtime.runtime_api.settings import RuntimeAPISettings

OLD, NEW = "ab" * 32, "cd" * 32


def key_file(path: Path, *keys: str) -> TicketKeyFile:
    path.write_text("\n".join(keys))
    return TicketKeyFile(TicketSettings(key_file=str(path)))


def is_signed_with(keyring: TicketKeyring, key: str) -> bool:
    return keyring.message_id("x") == TicketKeyring([bytes.fromhex(key)]).message_id("x")


@pytest.mark.parametrize("text", [None, "", "ab", "\xff"])
def test_missing_or_invalid_file_names_the_setting_and_the_remedy(tmp_path: Path, text: str | None) -> None:
    path = tmp_path / "keys"
    if text is not None:
        path.write_text(text)
    with pytest.raises(InvalidSettings, match=r"tickets\.keyFile: .*keys: .*openssl rand -hex 32"):
        TicketKeyFile(TicketSettings(key_file=str(path)))


async def start(process: str, tickets: TicketSettings) -> None:
    """Start a process. Its connections do not exist, because it must fail before it uses them."""
    unused: Any = None
    match process:
        case "runtime-api":
            await run_runtime_api(RuntimeAPISettings(tickets=tickets), asyncio.Event())
        case "activator":
            new_activator(unused, unused, unused, ActivatorSettings(tickets=tickets), KubeMetrics())
        case "result-store":
            await run_result_store(ResultStoreSettings(tickets=tickets), asyncio.Event())


@pytest.mark.parametrize("process", ["runtime-api", "activator", "result-store"])
async def test_process_without_a_key_file_does_not_start(tmp_path: Path, process: str) -> None:
    tickets = TicketSettings(key_file=str(tmp_path / "missing"))
    with pytest.raises(InvalidSettings, match=r"tickets\.keyFile: .*missing: No such file or directory; write a key"):
        await start(process, tickets)


async def test_watch_that_fails_does_not_end_silently(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each process runs the watch in its task group, so the process exits."""
    monkeypatch.setattr("gpu_runtime.process.ticket_key_file.KEY_FILE_POLL_INTERVAL_SECONDS", 0.0)
    keys = key_file(tmp_path / "keys", OLD)
    monkeypatch.setattr(keys, "reload_if_changed", lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        await keys.watch(asyncio.Event())


async def test_watch_reloads_the_file_until_the_process_stops(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gpu_runtime.process.ticket_key_file.KEY_FILE_POLL_INTERVAL_SECONDS", 0.001)
    path, stopping = tmp_path / "keys", asyncio.Event()
    keys = key_file(path, OLD)
    async with asyncio.timeout(10), asyncio.TaskGroup() as tasks:
        tasks.create_task(keys.watch(stopping))
        path.write_text(NEW)
        while not is_signed_with(keys.keyring, NEW):  # noqa: ASYNC110 - a thread changes the keys
            await asyncio.sleep(0.001)
        stopping.set()


def test_changed_file_is_reloaded(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    keys = key_file(path, OLD)
    path.write_text(f"{NEW}\n{OLD}\n")
    keys.reload_if_changed()
    assert is_signed_with(keys.keyring, NEW)


def test_invalid_change_keeps_the_previous_keys_and_is_logged_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "keys"
    keys = key_file(path, OLD)
    path.write_text("not a key")
    with caplog.at_level(logging.ERROR):
        for _ in range(3):
            keys.reload_if_changed()
    assert is_signed_with(keys.keyring, OLD)
    assert [each.message for each in caplog.records] == [
        "ticket key file reload failed; the process continues with the previous keys"
    ]
    path.write_text(NEW)
    keys.reload_if_changed()
    assert is_signed_with(keys.keyring, NEW)
