"""The controller manager as a process of its own, under the identity that its RBAC manifests give it, and its costs."""

import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from signal import Signals
from typing import Any

import yaml

from localcluster.control_plane import ControlPlane, free_port
from localcluster.processes import tail, wait_until

IDENTITY = "system:serviceaccount:runtime-system:controller-manager"
PROGRAM = Path(sys.executable).with_name("gpu-runtime")
TICKS = os.sysconf("SC_CLK_TCK")


@dataclass
class Manager:
    process: "subprocess.Popen[bytes]"
    port: int
    log: Path

    def cpu(self) -> float:
        """Seconds, in user and in system mode, since it started."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / TICKS

    def memory(self) -> tuple[float, float]:
        """Resident now and at most so far, in MB."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        kilobytes = {
            name: int(rest.split()[0])
            for name, _, rest in (line.partition(":") for line in lines)
            if name in ("VmRSS", "VmHWM")
        }
        return kilobytes["VmRSS"] / 1024, kilobytes["VmHWM"] / 1024

    def metric(self, prefix: str) -> float:
        """The sum of all samples whose line starts so; 0 where there is none or no answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/metrics", timeout=5) as answer:
                lines = answer.read().decode().splitlines()
        except OSError:
            return 0
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(prefix))

    def leads(self) -> bool:
        return self.metric("kube_leading{") == 1


@contextmanager
def manager(plane: ControlPlane, folder: Path, **settings: Any) -> Iterator[Manager]:
    """One that leads. It ends in an orderly way, so that the next one need not wait for its lease."""
    port = free_port()
    config, log = folder / "controller-manager.yaml", folder / "controller-manager.log"
    given = {
        "endpoints": {"bind": f"127.0.0.1:{port}"},
        "kubernetes": {"kubeconfig": str(plane.kubeconfig_for("manager", IDENTITY))},
        "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
    }
    config.write_text(yaml.safe_dump(given | settings))
    command = ["setpriv", "--pdeathsig", "KILL", "--", str(PROGRAM), "controller-manager", "--config", str(config)]
    with log.open("ab") as said:
        started = Manager(subprocess.Popen(command, stderr=said), port, log)
    try:
        wait_until(started.leads, 60, lambda: f"the controller manager does not lead:\n{tail(log, 40)}")
        yield started
    finally:
        started.process.send_signal(Signals.SIGTERM)
        started.process.wait(60)
