"""A test run reports tests that the machine cannot run. In CI such a skip fails the run."""

import os
import subprocess
import sys
from pathlib import Path

PROJECT = Path(__file__).parent.parent.parent
CLUSTER_TEST = (
    "tests/integration/localcluster/test_control_plane.py::test_a_deployment_becomes_ready_on_simulated_nodes"
)


def run_without_a_cluster(tmp_path: Path, ci: str) -> subprocess.CompletedProcess[str]:
    """Run a cluster test on a machine that cannot build Kubernetes: a fake `go` fails every command but `version`."""
    go = tmp_path / "bin" / "go"
    go.parent.mkdir()
    go.write_text(
        '#!/bin/sh\n[ "$1" = version ] && echo "go version go1.26.0 x" && exit\necho "no proxy" >&2\nexit 1\n'
    )
    go.chmod(0o755)
    environment = os.environ | {
        "CI": ci,
        "PATH": f"{go.parent}:/usr/bin:/bin",
        "XDG_CACHE_HOME": str(tmp_path / "cache"),
        "KUBEBUILDER_ASSETS": "",
    }
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", CLUSTER_TEST]
    return subprocess.run(
        command, cwd=PROJECT, env=environment, capture_output=True, text=True, timeout=120, check=False
    )


def test_skipped_tests_are_reported_at_the_end(tmp_path: Path) -> None:
    run = run_without_a_cluster(tmp_path, ci="")
    assert run.returncode == 0, run.stdout
    assert "SOME TESTS WERE SKIPPED" in run.stdout
    assert "1 tests were skipped: the build of Kubernetes 1.36.4 failed (no proxy)" in run.stdout


def test_skipped_tests_fail_the_run_in_ci(tmp_path: Path) -> None:
    run = run_without_a_cluster(tmp_path, ci="true")
    assert run.returncode == 1
    assert "no test may be skipped in CI" in run.stdout
