"""The controller manager as a process of its own, under the identity that its RBAC manifests give it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measured_process import MeasuredProcess, start_process
from localcluster.control_plane import ControlPlane

CONTROLLER_MANAGER_USER = "system:serviceaccount:runtime-system:controller-manager"


@contextmanager
def start_controller_manager(plane: ControlPlane, folder: Path, **settings: Any) -> Iterator[MeasuredProcess]:
    """One that leads. It ends in an orderly way, so that the next one need not wait for its lease."""
    given = {
        "kubernetes": {"kubeconfig": str(plane.kubeconfig_for("manager", CONTROLLER_MANAGER_USER))},
        "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
    }
    with start_process("controller-manager", folder, given | settings, _is_leader) as started:
        yield started


def _is_leader(started: MeasuredProcess) -> bool:
    return started.metric_sum("kube_leading{") == 1
