"""The API server accepts every kustomization with strict validation, and admits its pods under `restricted`.

Nothing is installed: the tests send the objects as a server-side dry run, in the namespace of the test.
"""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.integration.conftest import CONFIG_DIR, Kubectl

Object = dict[str, Any]

KUSTOMIZATIONS = sorted(path.parent.relative_to(CONFIG_DIR) for path in CONFIG_DIR.rglob("kustomization.yaml"))
WITHOUT_CRDS = {Path("prometheus")}  # uses CRDs of the Prometheus operator, which this cluster does not have
WITH_PODS = (Path("nats"), Path("overlays/local"), Path("overlays/production"))

pytestmark = pytest.mark.usefixtures("platform_crds")


def render(kubectl: Kubectl, folder: Path) -> list[Object]:
    result = kubectl("kustomize", str(CONFIG_DIR / folder))
    assert result.returncode == 0, result.stderr
    return [each for each in yaml.safe_load_all(result.stdout) if each]


def dry_run_names(kubectl: Kubectl, manifests: list[Object]) -> list[str]:
    """Return the names of the objects that the API server accepts."""
    result = dry_run(kubectl, manifests)
    assert result.returncode == 0, result.stderr
    return result.stdout.split()


def dry_run(kubectl: Kubectl, manifests: list[Object]) -> "CompletedProcess[str]":
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    return kubectl(*arguments, stdin=yaml.safe_dump_all(manifests))


def with_namespace(manifest: Object, namespace: str) -> Object:
    """Return the object in another namespace. A cluster-scoped object does not change."""
    metadata = manifest["metadata"]
    return manifest | {"metadata": metadata | ({"namespace": namespace} if "namespace" in metadata else {})}


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=str)
def test_kustomization_is_accepted_by_the_api_server(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    manifests = render(kubectl, folder)
    assert manifests
    if folder not in WITHOUT_CRDS:
        assert len(dry_run_names(kubectl, [with_namespace(each, namespace) for each in manifests])) == len(manifests)


@pytest.mark.parametrize("folder", WITH_PODS, ids=str)
def test_platform_pods_are_admitted_under_restricted(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    pods = restricted_pods(kubectl, namespace, folder)
    assert len(dry_run_names(kubectl, pods)) == len(pods) > 0
    rejected = dry_run(kubectl, [privileged(each) for each in pods])
    assert rejected.stdout == ""
    assert rejected.stderr.count('violates PodSecurity "restricted:latest": privileged') == len(pods)


def restricted_pods(kubectl: Kubectl, namespace: str, folder: Path) -> list[Object]:
    """Return the pods of the workloads of a kustomization. Enforce `restricted` in the namespace."""
    label = kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    assert label.returncode == 0, label.stderr
    workloads = [each for each in render(kubectl, folder) if each["kind"] in {"Deployment", "StatefulSet"}]
    pods = [pod_of(each, namespace) for each in workloads]
    for account in {pod["spec"]["serviceAccountName"] for pod in pods}:
        assert kubectl("create", "serviceaccount", account, f"--namespace={namespace}").returncode == 0
    return pods


def privileged(pod: Object) -> Object:
    """Return the pod with a privileged first container."""
    first, *others = pod["spec"]["containers"]
    privileged_container = first | {"securityContext": {"privileged": True}}
    return pod | {"spec": pod["spec"] | {"containers": [privileged_container, *others]}}


def pod_of(workload: Object, namespace: str) -> Object:
    """Return the pod of a workload.

    A pod without a service account gets one, because Kubernetes creates the default service account with a delay.
    """
    template = workload["spec"]["template"]
    metadata = template["metadata"] | {"name": workload["metadata"]["name"], "namespace": namespace}
    spec = {"serviceAccountName": "no-permissions"} | template["spec"]
    pvc_templates = workload["spec"].get("volumeClaimTemplates", [])
    volumes = [{"name": each["metadata"]["name"], "emptyDir": {}} for each in pvc_templates]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec | {"volumes": [*spec.get("volumes", []), *volumes]},
    }
