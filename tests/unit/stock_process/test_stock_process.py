"""The stock process lets go when told to, also as the first process of a container."""

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from localcluster.supervisor_client import wait_until


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("unshare"), reason="LEFT OUT: a process namespace needs root")
def test_the_first_process_of_a_namespace_ends_on_sigterm() -> None:
    """The kernel drops SIGTERM for a first process that does not handle it, so one that ignores it never ends here."""
    command = ["unshare", "--pid", "--fork", "--kill-child", sys.executable, "-m", "gpu_runtime.stock_process"]
    with subprocess.Popen(command) as outer:
        children = Path(f"/proc/{outer.pid}/task/{outer.pid}/children")
        wait_until(lambda: children.read_text().strip() != "", 60, lambda: "no child")
        stock = int(children.read_text())

        def ended() -> bool:
            with contextlib.suppress(ProcessLookupError):
                os.kill(stock, 15)
            return outer.poll() is not None

        try:
            wait_until(ended, 60, lambda: "it ignores SIGTERM")
        finally:
            outer.kill()
    assert outer.returncode == 0
