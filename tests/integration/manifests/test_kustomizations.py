"""Every kustomization, as an API server takes it: strictly validated, its pods admitted under `restricted`.

Nothing is installed: the objects are sent as a dry run, in a namespace of the test's own.
"""

from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest
import yaml

from tests.integration.conftest import CONFIG_DIR, Kubectl

Object = dict[str, Any]

KUSTOMIZATIONS = sorted(path.parent.relative_to(CONFIG_DIR) for path in CONFIG_DIR.rglob("kustomization.yaml"))
FOREIGN = {Path("prometheus")}  # kinds of the Prometheus operator, which this cluster does not have
WHOLE = (Path("nats"), Path("overlays/local"), Path("overlays/production"))

pytestmark = pytest.mark.usefixtures("platform_crds")


def rendered(kubectl: Kubectl, folder: Path) -> list[Object]:
    done = kubectl("kustomize", str(CONFIG_DIR / folder))
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def sent(kubectl: Kubectl, manifests: list[Object]) -> list[str]:
    """The names of what the API server would take."""
    done = tried(kubectl, manifests)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def tried(kubectl: Kubectl, manifests: list[Object]) -> "CompletedProcess[str]":
    arguments = ("apply", "--server-side", "--dry-run=server", "--validate=strict", "-o", "name", "-f", "-")
    return kubectl(*arguments, stdin=yaml.safe_dump_all(manifests))


def moved(manifest: Object, namespace: str) -> Object:
    """The same object in another namespace, if it is in one."""
    metadata = manifest["metadata"]
    return manifest | {"metadata": metadata | ({"namespace": namespace} if "namespace" in metadata else {})}


@pytest.mark.parametrize("folder", KUSTOMIZATIONS, ids=str)
def test_a_kustomization_is_accepted(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    manifests = rendered(kubectl, folder)
    assert manifests
    if folder not in FOREIGN:
        assert len(sent(kubectl, [moved(each, namespace) for each in manifests])) == len(manifests)


@pytest.mark.parametrize("folder", WHOLE, ids=str)
def test_every_pod_of_the_platform_is_admitted_under_restricted(kubectl: Kubectl, namespace: str, folder: Path) -> None:
    pods = restricted_pods(kubectl, namespace, folder)
    assert len(sent(kubectl, pods)) == len(pods) > 0
    refused = tried(kubectl, [privileged(each) for each in pods])
    assert refused.stdout == ""
    assert refused.stderr.count('violates PodSecurity "restricted:latest": privileged') == len(pods)


def restricted_pods(kubectl: Kubectl, namespace: str, folder: Path) -> list[Object]:
    """The pods that a kustomization leads to, for a namespace in which `restricted` is enforced from now on."""
    label = kubectl("label", "namespace", namespace, "pod-security.kubernetes.io/enforce=restricted")
    assert label.returncode == 0, label.stderr
    workloads = [each for each in rendered(kubectl, folder) if each["kind"] in {"Deployment", "StatefulSet"}]
    pods = [pod_of(each, namespace) for each in workloads]
    for account in {pod["spec"]["serviceAccountName"] for pod in pods}:
        assert kubectl("create", "serviceaccount", account, f"--namespace={namespace}").returncode == 0
    return pods


def privileged(pod: Object) -> Object:
    """The same pod, whose first container has the run of its node."""
    first, *others = pod["spec"]["containers"]
    freed = first | {"securityContext": {"privileged": True}}
    return pod | {"spec": pod["spec"] | {"containers": [freed, *others]}}


def pod_of(workload: Object, namespace: str) -> Object:
    """The pod that a workload would make. One without an account of its own gets one: the default one comes late."""
    template = workload["spec"]["template"]
    metadata = template["metadata"] | {"name": workload["metadata"]["name"], "namespace": namespace}
    spec = {"serviceAccountName": "nobody"} | template["spec"]
    claims = workload["spec"].get("volumeClaimTemplates", [])
    volumes = [{"name": each["metadata"]["name"], "emptyDir": {}} for each in claims]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": metadata,
        "spec": spec | {"volumes": [*spec.get("volumes", []), *volumes]},
    }
