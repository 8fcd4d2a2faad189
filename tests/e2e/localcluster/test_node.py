"""A local node runs real pods, with Services, DNS, volumes and simulated GPUs."""

import json
import urllib.request
from typing import Any

import pytest
import yaml
from lightkube import Client
from lightkube.resources.core_v1 import PersistentVolume, PersistentVolumeClaim, Pod, Service

from localcluster.node import Node
from localcluster.supervisor_client import ProcessFailed, wait_until

WEB_SERVER = ["python", "-m", "http.server", "8080"]


def pod(name: str, command: list[str], image: str = "python:3.12", **container: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "restartPolicy": "Never",
            "containers": [{"name": "main", "image": image, "command": command, **container}],
        },
    }


def with_volume(manifest: dict[str, Any], pvc_name: str) -> dict[str, Any]:
    spec = manifest["spec"]
    spec["volumes"] = [{"name": "data", "persistentVolumeClaim": {"claimName": pvc_name}}]
    spec["containers"][0]["volumeMounts"] = [{"name": "data", "mountPath": "/data"}]
    return manifest


def pvc(name: str, size: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": name},
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "storageClassName": "rook-ceph-block",
            "resources": {"requests": {"storage": size}},
        },
    }


class NodeNamespace:
    """A namespace of the node, used through kubectl."""

    def __init__(self, node: Node, namespace: str) -> None:
        self.node, self.namespace = node, namespace

    def apply(self, *manifests: dict[str, Any], folder: str) -> None:
        path = self.node.state_dir / f"{self.namespace}-{folder}.yaml"
        path.write_text(yaml.safe_dump_all(manifests))
        self.kubectl("apply", "-f", str(path))

    def kubectl(self, *arguments: str) -> str:
        return self.node.kubectl("--namespace", self.namespace, *arguments)

    def wait(self, resource: str, condition: str, timeout: str = "60s") -> None:
        self.kubectl("wait", resource, f"--for={condition}", f"--timeout={timeout}")


@pytest.fixture
def node_namespace(node: Node, namespace: str) -> NodeNamespace:
    return NodeNamespace(node, namespace)


def test_a_deployment_becomes_ready_on_the_real_node(node_namespace: NodeNamespace) -> None:
    node_namespace.kubectl("create", "deployment", "web", "--image=nginx:1.27", "--replicas=2")
    node_namespace.kubectl("rollout", "status", "deployment/web", "--timeout=120s")
    assert "local" in node_namespace.kubectl("get", "pods", "--output=jsonpath={.items[*].spec.nodeName}")


def test_a_service_answers_from_the_host_and_from_a_pod_by_name(node_namespace: NodeNamespace, kube: Client) -> None:
    node_namespace.apply(pod("web", WEB_SERVER), folder="web")
    node_namespace.kubectl("expose", "pod", "web", "--port=80", "--target-port=8080")
    node_namespace.wait("pod/web", "condition=Ready")
    service = kube.get(Service, "web", namespace=node_namespace.namespace)
    assert service.spec
    address = f"http://{service.spec.clusterIP}/"

    def is_reachable_from_host() -> bool:
        try:
            with urllib.request.urlopen(address, timeout=5) as page:
                return b"Directory listing" in page.read()
        except OSError:
            return False

    wait_until(is_reachable_from_host, 60, lambda: f"{address} is not reachable from the host")
    url = f"http://web.{node_namespace.namespace}.svc.cluster.local/"
    node_namespace.apply(
        pod("client", ["curl", "--silent", "--retry", "5", "--retry-connrefused", url]), folder="client"
    )
    node_namespace.wait("pod/client", "jsonpath={.status.phase}=Succeeded")
    assert "Directory listing" in node_namespace.kubectl("logs", "client")


def test_a_pod_reaches_its_own_service(node_namespace: NodeNamespace) -> None:
    node_namespace.apply(pod("web", WEB_SERVER), folder="web")
    node_namespace.kubectl("expose", "pod", "web", "--name=front", "--port=80", "--target-port=8080")
    node_namespace.wait("pod/web", "condition=Ready")
    command = ["curl", "--silent", "--retry", "5", "--retry-connrefused", "http://front/"]
    assert "Directory listing" in node_namespace.kubectl("exec", "web", "--", *command)


def test_volume_preserves_data_expands_and_is_deleted_with_its_pvc(
    node_namespace: NodeNamespace, kube: Client, node: Node
) -> None:
    writer = with_volume(pod("writer", ["sh", "-c", "echo content > /data/file"]), "data")
    node_namespace.apply(pvc("data", "1Gi"), writer, folder="writer")
    node_namespace.wait("pod/writer", "jsonpath={.status.phase}=Succeeded")
    node_namespace.kubectl("delete", "pod", "writer")

    node_namespace.kubectl(
        "patch", "pvc", "data", "--patch", json.dumps({"spec": {"resources": {"requests": {"storage": "3Gi"}}}})
    )
    node_namespace.wait("pvc/data", "jsonpath={.status.capacity.storage}=3Gi")

    node_namespace.apply(with_volume(pod("reader", ["cat", "/data/file"]), "data"), folder="reader")
    node_namespace.wait("pod/reader", "jsonpath={.status.phase}=Succeeded")
    assert node_namespace.kubectl("logs", "reader").strip() == "content"
    node_namespace.kubectl("delete", "pod", "reader")

    bound = kube.get(PersistentVolumeClaim, "data", namespace=node_namespace.namespace)
    assert bound.spec
    volume = str(bound.spec.volumeName)
    node_namespace.kubectl("delete", "pvc", "data")
    wait_until(lambda: not _exists(kube, volume), 60, lambda: f"volume {volume} still exists after its PVC was deleted")
    assert not (node.state_dir / "volumes" / volume).exists()


def _exists(kube: Client, volume: str) -> bool:
    return any(each.metadata and each.metadata.name == volume for each in kube.list(PersistentVolume))


def test_a_volume_never_shrinks(node_namespace: NodeNamespace) -> None:
    node_namespace.apply(pvc("data", "2Gi"), folder="claim")
    node_namespace.wait("pvc/data", "jsonpath={.status.phase}=Bound")
    smaller = json.dumps({"spec": {"resources": {"requests": {"storage": "1Gi"}}}})
    with pytest.raises(ProcessFailed, match="can not be less than"):
        node_namespace.kubectl("patch", "pvc", "data", "--patch", smaller)


def test_pod_beyond_the_gpu_capacity_waits_for_a_free_gpu(
    node_namespace: NodeNamespace, kube: Client, node: Node
) -> None:
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    names = [f"gpu-{number}" for number in range(node.gpus + 1)]
    node_namespace.apply(*(pod(name, WEB_SERVER, resources=limits) for name in names), folder="gpus")

    def pods() -> list[Pod]:
        return list(kube.list(Pod, namespace=node_namespace.namespace))

    def running() -> list[str]:
        return [str(p.metadata and p.metadata.name) for p in pods() if p.status and p.status.phase == "Running"]

    wait_until(lambda: len(running()) == node.gpus, 60, lambda: f"{len(running())} of {node.gpus} pods run")
    pending = next(p for p in pods() if p.status and p.status.phase == "Pending")
    assert pending.status
    assert any("Insufficient nvidia.com/gpu" in (c.message or "") for c in pending.status.conditions or [])
    devices = {
        node_namespace.kubectl("exec", name, "--", "printenv", "NVIDIA_VISIBLE_DEVICES").strip() for name in running()
    }
    assert len(devices) == node.gpus, "two pods have the same GPU"
    node_namespace.kubectl("delete", "pod", running()[0])
    assert pending.metadata
    node_namespace.wait(f"pod/{pending.metadata.name}", "condition=Ready")


def test_memory_request_may_exceed_the_machine(node_namespace: NodeNamespace) -> None:
    node_namespace.apply(pod("large", WEB_SERVER, resources={"limits": {"memory": "256Gi"}}), folder="large")
    node_namespace.wait("pod/large", "condition=Ready")


@pytest.mark.parametrize(
    ("image", "command", "output"),
    [
        ("python:3.12", ["python", "-c", "print(6 * 7)"], "42"),
        ("python:3.12-slim", ["python", "-c", "print(6 * 7)"], "42"),
        ("busybox:1.36", ["sh", "-c", "echo hello"], "hello"),
        ("nginx:1.27", ["nginx", "-v"], "nginx version"),
        ("gpu-runtime:local", ["gpu-runtime", "--version"], "gpu-runtime "),
        ("gpu-runtime:local", ["python", "-c", "import gpu_runtime; print('imported')"], "imported"),
    ],
)
def test_local_image_replaces_the_image_of_the_same_name(
    node_namespace: NodeNamespace, image: str, command: list[str], output: str
) -> None:
    node_namespace.apply(pod("main", command, image), folder="image")
    node_namespace.wait("pod/main", "jsonpath={.status.phase}=Succeeded")
    assert output in node_namespace.kubectl("logs", "main")


def test_missing_image_is_reported_immediately(node_namespace: NodeNamespace, kube: Client) -> None:
    node_namespace.apply(pod("main", ["true"], "no-such-registry.invalid/none:1"), folder="image")

    def reason() -> str:
        status = kube.get(Pod, "main", namespace=node_namespace.namespace).status
        states = [s.state for s in (status and status.containerStatuses) or [] if s.state]
        return next((str(state.waiting.reason) for state in states if state.waiting), "")

    wait_until(lambda: reason() in ("ErrImagePull", "ImagePullBackOff"), 60, lambda: f"waiting reason: {reason()}")


def test_a_restricted_pod_runs(node_namespace: NodeNamespace, node: Node) -> None:
    node.kubectl("label", "namespace", node_namespace.namespace, "pod-security.kubernetes.io/enforce=restricted")
    manifest = pod(
        "main",
        ["python", "-c", "import os; print(os.getuid())"],
        securityContext={
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        },
    )
    manifest["spec"]["securityContext"] = {
        "runAsNonRoot": True,
        "runAsUser": 10001,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    node_namespace.apply(manifest, folder="restricted")
    node_namespace.wait("pod/main", "jsonpath={.status.phase}=Succeeded")
    assert node_namespace.kubectl("logs", "main").strip() == "10001"
