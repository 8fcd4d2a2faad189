"""Runs the controller manager as a separate process with the identity of its RBAC manifests."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measured_process import MeasuredProcess, start_process
from localcluster.control_plane import ControlPlane

CONTROLLER_MANAGER_USER = "system:serviceaccount:runtime-system:controller-manager"


@contextmanager
def start_controller_manager(plane: ControlPlane, folder: Path, **settings: Any) -> Iterator[MeasuredProcess]:
    """Run a controller manager and wait until it is the leader.

    At the end it releases its lease, so that the next process does not have to wait until the lease expires.
    """
    defaults = {
        "kubernetes": {"kubeconfig": str(plane.kubeconfig_for("manager", CONTROLLER_MANAGER_USER))},
        "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
    }
    with start_process("controller-manager", folder, defaults | settings, _is_leader) as process:
        yield process


def _is_leader(process: MeasuredProcess) -> bool:
    return process.metric_sum("leader_election_master_status{") == 1
