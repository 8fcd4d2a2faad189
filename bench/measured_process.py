"""Runs a process of the product and reads its CPU time and memory from the kernel, and its own metrics."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import yaml

from localcluster.free_ports import free_port
from localcluster.supervisor_client import tail_log, wait_until

GPU_RUNTIME_EXECUTABLE = Path(sys.executable).with_name("gpu-runtime")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""A command prefix: the kernel kills the process when its parent exits."""
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(pid: int) -> float:
    """Return the CPU time of a process in user and system mode since its start."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND


@dataclass
class MeasuredProcess:
    process: "subprocess.Popen[bytes]"
    health_port: int
    """The port of the health and metrics endpoints."""
    log_path: Path

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.process.pid)

    def rss_megabytes(self) -> tuple[float, float]:
        """Return the current and the peak resident memory."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "VmHWM")
        }
        return kilobytes["VmRSS"] / 1024, kilobytes["VmHWM"] / 1024

    def metric_sum(self, prefix: str) -> float:
        """Return the sum of all samples whose line has this prefix. It is 0 without samples or without response."""
        lines = self.http_get("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))

    def is_ready(self) -> bool:
        return bool(self.http_get("/readyz"))

    def http_get(self, path: str) -> str:
        """Return the response body. It is empty for an error status or without response."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=5) as response:
                return str(response.read().decode())
        except OSError:
            return ""


@contextmanager
def start_process(
    command: str, folder: Path, settings: dict[str, Any], ready: Callable[[MeasuredProcess], bool], name: str = ""
) -> Iterator[MeasuredProcess]:
    """Run `gpu-runtime COMMAND` with these settings and wait until it is ready. Stop it with SIGTERM at the end."""
    name, port = name or command, free_port()
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    config.write_text(yaml.safe_dump({"health": {"bindAddress": f"127.0.0.1:{port}"}} | settings))
    with log.open("ab") as stderr:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, str(GPU_RUNTIME_EXECUTABLE), command, "--config", str(config)], stderr=stderr
        )
    measured = MeasuredProcess(process, port, log)
    try:
        wait_until(lambda: ready(measured), 60, lambda: f"{name} did not become ready:\n{tail_log(log, 40)}")
        yield measured
    finally:
        process.send_signal(Signals.SIGTERM)
        process.wait(60)
