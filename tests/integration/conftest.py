"""What tests on a real API server share: the platform's own kinds, and kubectl."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from localcluster.control_plane import ControlPlane

CONFIG_DIR = Path(__file__).parents[2] / "config"


def nats_liveness_path() -> str:
    """The path by which the kubelet finds out whether the platform's NATS server is to be started anew."""
    objects = yaml.safe_load_all((CONFIG_DIR / "nats" / "nats.yaml").read_text())
    (server,) = (each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet")
    return str(server["containers"][0]["livenessProbe"]["httpGet"]["path"])


Kubectl: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """Runs kubectl with every right. The result says how it went; nothing is raised."""
    program = [str(control_plane.binary_paths["kubectl"]), f"--kubeconfig={control_plane.kubeconfig}"]

    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*program, *arguments], input=stdin, capture_output=True, text=True, timeout=180, check=False
        )

    return run


@pytest.fixture(scope="session")
def platform_crds(kubectl: Kubectl) -> tuple[str, ...]:
    """The platform's CustomResourceDefinitions, installed and served. Gives their names."""
    applied = kubectl("apply", "--server-side", "--validate=strict", "-k", str(CONFIG_DIR / "crd"), "-o", "name")
    assert applied.returncode == 0, applied.stderr
    names = tuple(applied.stdout.split())
    served = kubectl("wait", "--for=condition=Established", "--timeout=120s", *names)
    assert served.returncode == 0, served.stderr
    # Established is said a moment before storage answers. kubectl waits as the API server asks it to.
    listed = [kubectl("get", name.partition("/")[2], "--all-namespaces") for name in names]
    assert [done.returncode for done in listed] == [0] * len(names), listed
    return names
