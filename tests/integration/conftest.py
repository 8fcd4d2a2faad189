"""Fixtures for tests with a real API server: the CRDs of the platform, and kubectl."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import TypeAlias

import pytest
import yaml

from localcluster.control_plane import ControlPlane

CONFIG_DIR = Path(__file__).parents[2] / "config"


def nats_liveness_path() -> str:
    """Return the path of the liveness probe of the platform's NATS server."""
    objects = yaml.safe_load_all((CONFIG_DIR / "nats" / "nats.yaml").read_text())
    (pod_spec,) = (each["spec"]["template"]["spec"] for each in objects if each["kind"] == "StatefulSet")
    return str(pod_spec["containers"][0]["livenessProbe"]["httpGet"]["path"])


Kubectl: TypeAlias = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture(scope="session")
def kubectl(control_plane: ControlPlane) -> Kubectl:
    """Runs kubectl with administrator rights. The caller checks the return code; the function does not raise."""
    program = [str(control_plane.binary_paths["kubectl"]), f"--kubeconfig={control_plane.kubeconfig}"]

    def run(*arguments: str, stdin: str = "") -> "subprocess.CompletedProcess[str]":
        return subprocess.run(
            [*program, *arguments], input=stdin, capture_output=True, text=True, timeout=180, check=False
        )

    return run


@pytest.fixture(scope="session")
def platform_crds(kubectl: Kubectl) -> tuple[str, ...]:
    """Installs the CRDs of the platform, waits until the API server serves them, and returns their names."""
    applied = kubectl("apply", "--server-side", "--validate=strict", "-k", str(CONFIG_DIR / "crd"), "-o", "name")
    assert applied.returncode == 0, applied.stderr
    names = tuple(applied.stdout.split())
    served = kubectl("wait", "--for=condition=Established", "--timeout=120s", *names)
    assert served.returncode == 0, served.stderr
    # A CRD is Established shortly before its storage is ready. kubectl obeys the Retry-After header of the API server.
    listed = [kubectl("get", name.partition("/")[2], "--all-namespaces") for name in names]
    assert [completed.returncode for completed in listed] == [0] * len(names), listed
    return names
