"""Every command of the documents runs on a local platform, as it is written on the page."""

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from checks.documented_commands import CommandBlock, command_blocks, pages_with_commands
from checks.source_files import ROOT
from localcluster.free_ports import free_port
from tests.conftest import enter_or_skip
from tests.e2e.localcluster.test_dev_platform import DevPlatform, prepared

DOCUMENTED_API = "127.0.0.1:8080"
DOCUMENTED_STATE = "$PWD/.local"
PAGE_TIMEOUT_SECONDS = 600


@pytest.fixture(scope="module")
def platform(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DevPlatform]:
    with enter_or_skip(prepared()):
        started = DevPlatform(tmp_path_factory.mktemp("documented") / "local", free_port(), free_port())
        up = started.up()
        assert up.returncode == 0, up.stderr
        yield started
        started.run("wipe")


def as_run(text: str, platform: DevPlatform) -> str:
    """The commands with the address and the folder of this platform instead of those of `make up`."""
    local = text.replace(DOCUMENTED_API, f"127.0.0.1:{platform.api_port}")
    return local.replace(DOCUMENTED_STATE, str(platform.state_dir))


def run_page(page: str, blocks: list[CommandBlock], platform: DevPlatform, folder: Path) -> None:
    """Run the blocks of a page in one shell, and name the block that fails."""
    script = ["set -euo pipefail"]
    for block in blocks:
        script += [f"echo '==== {page}:{block.line}'", as_run(block.text, platform)]
    path = folder / "commands.sh"
    path.write_text("\n".join(script))
    tools = {
        "KUBECONFIG": str(platform.state_dir / "kubeconfig"),
        "PATH": f"{platform.state_dir}/bin:{os.environ['PATH']}",
    }
    with subprocess.Popen(
        ["bash", str(path)],
        cwd=ROOT,
        env=os.environ | tools,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    ) as shell:
        try:
            output, _ = shell.communicate(timeout=PAGE_TIMEOUT_SECONDS)
        finally:
            # A page may start processes in the background. They must not outlive the page, whatever happens.
            with contextlib.suppress(ProcessLookupError):
                os.killpg(shell.pid, signal.SIGKILL)
    assert shell.returncode == 0, output[-8000:]


def test_documented_commands_run_on_the_local_platform(platform: DevPlatform, tmp_path: Path) -> None:
    executed = 0
    for page in pages_with_commands():
        blocks = command_blocks(page, (ROOT / page).read_text())
        for block in blocks:
            if block.reason:
                print(f"not run: {page}:{block.line}: {block.reason}")
        to_run = [block for block in blocks if not block.reason]
        if to_run:
            run_page(page, to_run, platform, tmp_path)
            executed += len(to_run)
    assert executed >= 10
