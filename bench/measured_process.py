"""A process of the product while it runs, and what the kernel and its own metrics say of it."""

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

from localcluster.control_plane import free_port
from localcluster.supervisor_client import tail_log, wait_until

GPU_RUNTIME_EXECUTABLE = Path(sys.executable).with_name("gpu-runtime")
DIE_WITH_PARENT = ("setpriv", "--pdeathsig", "KILL", "--")
"""Before a command: it ends with whoever started it."""
CLOCK_TICKS_PER_SECOND = os.sysconf("SC_CLK_TCK")


def cpu_seconds_of(pid: int) -> float:
    """Seconds, in user and in system mode, since it started."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / CLOCK_TICKS_PER_SECOND


@dataclass
class MeasuredProcess:
    process: "subprocess.Popen[bytes]"
    health_port: int
    """Of health and metrics."""
    log_path: Path

    def cpu_seconds(self) -> float:
        return cpu_seconds_of(self.process.pid)

    def rss_megabytes(self) -> tuple[float, float]:
        """Resident now and at most so far, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "VmHWM")
        }
        return kilobytes["VmRSS"] / 1024, kilobytes["VmHWM"] / 1024

    def metric_sum(self, prefix: str) -> float:
        """The sum of all samples whose line starts so; 0 where there is none or no answer."""
        lines = self.http_get("/metrics").splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))

    def is_ready(self) -> bool:
        return bool(self.http_get("/readyz"))

    def http_get(self, path: str) -> str:
        """What it answers; empty where that is a refusal, or nothing."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.health_port}{path}", timeout=5) as answer:
                return str(answer.read().decode())
        except OSError:
            return ""


@contextmanager
def start_process(
    command: str, folder: Path, settings: dict[str, Any], ready: Callable[[MeasuredProcess], bool], name: str = ""
) -> Iterator[MeasuredProcess]:
    """`gpu-runtime COMMAND` with these settings, once it is ready. It ends in an orderly way."""
    name, port = name or command, free_port()
    config, log = folder / f"{name}.yaml", folder / f"{name}.log"
    config.write_text(yaml.safe_dump({"health": {"bindAddress": f"127.0.0.1:{port}"}} | settings))
    with log.open("ab") as said:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, str(GPU_RUNTIME_EXECUTABLE), command, "--config", str(config)], stderr=said
        )
    started = MeasuredProcess(process, port, log)
    try:
        wait_until(lambda: ready(started), 60, lambda: f"{name} does not become ready:\n{tail_log(log, 40)}")
        yield started
    finally:
        process.send_signal(Signals.SIGTERM)
        process.wait(60)
