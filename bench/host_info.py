"""Describes the machine of a benchmark run: hardware, kernel and versions.

Results of different machines are not comparable.
"""

import os
import platform
import subprocess
from collections.abc import Sequence
from pathlib import Path

import msgspec

from localcluster import binaries
from localcluster.nats_server import NATS_SERVER_BINARY


class HostInfo(msgspec.Struct, frozen=True):
    cores: int
    """The number of cores that this process may use."""
    memory_gib: float
    cpu_model: str
    kernel: str
    python: str
    kubernetes: str
    nats: str
    load_average: float
    """The load average of the minute before the run. Load of other processes disturbs the measurement."""

    def __str__(self) -> str:
        parts = [f"{self.cores} cores ({self.cpu_model})", f"{self.memory_gib:.0f} GiB", f"Linux {self.kernel}"]
        parts += [f"Python {self.python}", f"Kubernetes {self.kubernetes}", f"NATS {self.nats}"]
        return ", ".join([*parts, f"load {self.load_average:.1f} before the run"])


def host_info() -> HostInfo:
    return HostInfo(
        cores=len(os.sched_getaffinity(0)),
        memory_gib=int(_proc_field("/proc/meminfo", "MemTotal").split()[0]) / 1024**2,
        cpu_model=_proc_field("/proc/cpuinfo", "model name"),
        kernel=platform.release(),
        python=platform.python_version(),
        kubernetes=_version([str(binaries.resolve(["kube-apiserver"])["kube-apiserver"]), "--version"]),
        nats=_version([str(NATS_SERVER_BINARY), "--version"]),
        load_average=os.getloadavg()[0],
    )


def _proc_field(path: str, name: str) -> str:
    """Return the first field of that name. Some architectures do not report the CPU model."""
    pairs = (line.partition(":") for line in Path(path).read_text().splitlines())
    return next((value.strip() for key, _, value in pairs if key.strip() == name), "unknown")


def _version(command: Sequence[str]) -> str:
    output = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return output.split()[-1].removeprefix("v")
