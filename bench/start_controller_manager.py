"""The controller manager as a process of its own, under the identity that its RBAC manifests give it."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from bench.measured_process import Program, program
from localcluster.control_plane import ControlPlane

IDENTITY = "system:serviceaccount:runtime-system:controller-manager"


@contextmanager
def manager(plane: ControlPlane, folder: Path, **settings: Any) -> Iterator[Program]:
    """One that leads. It ends in an orderly way, so that the next one need not wait for its lease."""
    given = {
        "kubernetes": {"kubeconfig": str(plane.kubeconfig_for("manager", IDENTITY))},
        "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
    }
    with program("controller-manager", folder, given | settings, _leads) as started:
        yield started


def _leads(started: Program) -> bool:
    return started.metric("kube_leading{") == 1
