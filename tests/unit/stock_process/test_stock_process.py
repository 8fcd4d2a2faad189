"""The stock process exits on SIGTERM, also as the first process of a container."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.supervisor_client import wait_until


@pytest.mark.skipif(
    os.geteuid() != 0 or not shutil.which("unshare"), reason="SKIPPED: creating a PID namespace requires root"
)
def test_first_process_of_a_pid_namespace_exits_on_sigterm() -> None:
    """The kernel drops SIGTERM for a first process that neither handles nor blocks it, so it would never exit."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "gpu_runtime.stock_process"]
    with subprocess.Popen(command) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_until(lambda: children.read_text().strip() != "", 60, lambda: "unshare has no child process")
        stock = int(children.read_text())

        def has_exited() -> bool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stock, 15)
            return outer.poll() is not None

        try:
            wait_until(has_exited, 60, lambda: "the stock process ignores SIGTERM")
        finally:
            outer.kill()
    assert outer.returncode == 0
