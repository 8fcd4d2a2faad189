"""Units and pools on a real node, created with kubectl only, without the API."""

import contextlib
import functools
import json
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import yaml
from lightkube import ApiError, Client
from lightkube.generic_resource import create_namespaced_resource
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod, Service

from localcluster.node import Node
from localcluster.supervisor_client import wait_until

CONFIG = Path(__file__).parents[3] / "config"
GROUP = "runtime.lokiwager.io"
UNIT = create_namespaced_resource(GROUP, "v1alpha1", "GPUUnit", "gpuunits")

# The server handles SIGTERM, because PID 1 of a container ignores SIGTERM without a handler.
SERVER = """
import http.server, signal, sys
signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
http.server.test(http.server.SimpleHTTPRequestHandler, port=8080, bind="0.0.0.0")
"""


def unit(name: str, namespace: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": namespace, "annotations": annotations or {}},
        "spec": {"specName": "g1.1", "memory": "1Gi", "gpu": 1, **spec},
    }


def web(name: str, annotations: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    template = {
        "command": ["python", "-c"],
        "args": [SERVER],
        "ports": [{"name": "http", "port": 8080}],
    }
    return unit(name, "runtime-instance", annotations, image="python:3.12", template=template, **spec)


def sleeping_unit(name: str, annotations: dict[str, str]) -> dict[str, Any]:
    """Return a unit that does nothing and exits on SIGTERM immediately after its start."""
    command = ["sh", "-c", "trap 'exit 0' TERM; while :; do sleep 3600 & wait $!; done"]
    return unit(name, "runtime-instance", annotations, image="busybox:1.36", template={"command": command})


def apply_manifest(node: Node, manifest: dict[str, Any]) -> None:
    path = node.state_dir / "applied.yaml"
    path.write_text(yaml.safe_dump(manifest))
    node.kubectl("apply", "-f", str(path))


def get(node: Node, kind: str, namespace: str, name: str) -> dict[str, Any] | None:
    output = node.kubectl("get", kind, name, f"--namespace={namespace}", "--output=json", "--ignore-not-found")
    return dict(json.loads(output)) if output.strip() else None


def wait_ready(node: Node, namespace: str, name: str, kind: str = "gpuunit") -> dict[str, Any]:
    node.kubectl("wait", f"{kind}/{name}", f"--namespace={namespace}", "--for=condition=Ready", "--timeout=120s")
    found = get(node, kind, namespace, name)
    assert found
    return found


def is_deleted(kube: Client, kind: Any, namespace: str, name: str) -> bool:
    try:
        kube.get(kind, name, namespace=namespace)
    except ApiError as error:
        return error.status.code == 404
    return False


def is_fully_deleted(kube: Client, namespace: str, name: str) -> bool:
    pods = list(kube.list(Pod, namespace=namespace, labels={f"{GROUP}/unit": name}))
    return not pods and is_deleted(kube, Deployment, namespace, name) and is_deleted(kube, Service, namespace, name)


def test_stock_and_active_unit_become_ready_and_are_deleted_completely(deployed_platform: Node, kube: Client) -> None:
    apply_manifest(deployed_platform, unit("warm", "runtime-stock"))
    stock = wait_ready(deployed_platform, "runtime-stock", "warm")
    assert "serviceName" not in stock["status"]
    assert is_deleted(kube, Service, "runtime-stock", "warm")

    apply_manifest(deployed_platform, web("demo", access={"primaryPort": "http"}))
    active = wait_ready(deployed_platform, "runtime-instance", "demo")
    assert active["status"]["accessURL"] == "http://demo.runtime-instance.svc.cluster.local:8080"
    service = kube.get(Service, "demo", namespace="runtime-instance")
    assert service.spec
    address = f"http://{service.spec.clusterIP}:8080/"

    def responds() -> bool:
        try:
            with urllib.request.urlopen(address, timeout=3) as page:
                return b"Directory listing" in page.read()
        except OSError:
            return False

    wait_until(responds, 60, lambda: f"{address} does not respond")
    for namespace, name in (("runtime-stock", "warm"), ("runtime-instance", "demo")):
        deployed_platform.kubectl("delete", "gpuunit", name, f"--namespace={namespace}")
        wait_until(functools.partial(is_fully_deleted, kube, namespace, name), 60, lambda: "children still exist")


def test_pool_runs_and_its_crash_is_reported(deployed_platform: Node) -> None:
    pool: dict[str, Any] = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "StockPool",
        "metadata": {"name": "placeholder", "namespace": "default"},
        "spec": {"specName": "g1.1", "replicas": 1},
    }
    apply_manifest(deployed_platform, pool)
    assert wait_ready(deployed_platform, "default", "placeholder", "stockpool")["status"]["available"] == 1
    crash = ["python", "-c", "import sys; print('no such model: demo', file=sys.stderr); sys.exit(3)"]
    crashing_spec = pool["spec"] | {"image": "python:3.12", "template": {"command": crash}}
    apply_manifest(deployed_platform, pool | {"spec": crashing_spec})

    def message() -> str:
        found = get(deployed_platform, "stockpool", "default", "placeholder") or {}
        conditions = found.get("status", {}).get("conditions", [])
        return next((each["message"] for each in conditions if each["reason"] == "PodStartupFailed"), "")

    wait_until(lambda: "code 3" in message() and "no such model: demo" in message(), 60, message)
    deployed_platform.kubectl("delete", "stockpool", "placeholder", "--namespace=default")


def test_update_on_a_full_real_node_becomes_ready_again(deployed_platform: Node, one_free_gpu: None) -> None:
    apply_manifest(deployed_platform, web("updated"))
    before = wait_ready(deployed_platform, "runtime-instance", "updated")
    changed = web("updated")
    changed["spec"]["template"]["envs"] = [{"name": "CHANGED", "value": "yes"}]
    apply_manifest(deployed_platform, changed)

    def is_updated() -> bool:
        found = get(deployed_platform, "gpuunit", "runtime-instance", "updated") or {}
        status = found.get("status", {})
        return bool(status.get("phase") == "Ready" and status["observedGeneration"] > before["metadata"]["generation"])

    wait_until(is_updated, 60, lambda: "the unit does not become Ready after the update")
    deployed_platform.kubectl("delete", "gpuunit", "updated", "--namespace=runtime-instance", "--cascade=foreground")


@pytest.fixture
def one_free_gpu(deployed_platform: Node) -> Iterator[None]:
    """A pod holds all GPUs of the node except one."""
    holder = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "holder", "namespace": "default"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "priorityClassName": "system-node-critical",
            "containers": [
                {
                    "name": "main",
                    "image": "busybox:1.36",
                    "command": ["sleep", "3600"],
                    "resources": {"limits": {"nvidia.com/gpu": str(deployed_platform.gpus - 1)}},
                }
            ],
        },
    }
    apply_manifest(deployed_platform, holder)
    deployed_platform.kubectl("wait", "pod/holder", "--namespace=default", "--for=condition=Ready", "--timeout=120s")
    yield
    deployed_platform.kubectl("delete", "pod", "holder", "--namespace=default")


class RunningPodWatch:
    """Watches all pods of the platform and records when containers of two pods run at the same time."""

    def __init__(self, kube: Client) -> None:
        self.running: dict[str, str] = {}
        self.overlaps: list[set[str]] = []
        self.started: set[str] = set()
        self.thread = threading.Thread(target=self._watch, args=(kube,), daemon=True)
        self.thread.start()

    def _watch(self, kube: Client) -> None:
        with contextlib.suppress(httpx2.HTTPError, OSError, ValueError):  # the test closes the client at its end
            for operation, pod in kube.watch(
                Pod, namespace="*", labels={"app.kubernetes.io/managed-by": "gpu-runtime"}
            ):
                self._record(operation, pod)

    def _record(self, operation: str, pod: Pod) -> None:
        uid = str(pod.metadata and pod.metadata.uid)
        statuses = (pod.status and pod.status.containerStatuses) or []
        has_ended = bool(statuses) and all(each.state and each.state.terminated for each in statuses)
        if operation == "DELETED" or has_ended:
            self.running.pop(uid, None)
        elif any(each.state and each.state.running for each in statuses):
            self.running[uid] = str(pod.metadata and pod.metadata.name)
            self.started.add(uid)
        if len(self.running) > 1:
            self.overlaps.append(set(self.running.values()))


def test_last_gpu_is_never_used_by_two_pods(deployed_platform: Node, kube: Client, one_free_gpu: None) -> None:
    """Like the handoff, delete the stock unit and create the active unit without a pause.

    The container of the unit must not run before the container of the stock unit has ended.

    With real pods, a round takes four seconds. The integration test runs fifty rounds with simulated pods.
    """
    rounds = 5
    watch_client = deployed_platform.control_plane.client()
    watch = RunningPodWatch(watch_client)
    for number in range(rounds):
        stock = create(kube, unit(f"stock-{number}", "runtime-stock"))
        wait_until(functools.partial(is_ready, kube, "runtime-stock", f"stock-{number}"), 60, lambda: "stock not Ready")
        kube.delete(UNIT, f"stock-{number}", namespace="runtime-stock")
        provenance = {"name": f"stock-{number}", "namespace": "runtime-stock", "uid": stock, "node": "local"}
        annotations = {f"{GROUP}/source-stock-{key}": value for key, value in provenance.items()}
        create(kube, sleeping_unit(f"unit-{number}", annotations))
        wait_until(functools.partial(is_ready, kube, "runtime-instance", f"unit-{number}"), 60, lambda: "not Ready")
        kube.delete(UNIT, f"unit-{number}", namespace="runtime-instance")
        deleted = functools.partial(is_fully_deleted, kube, "runtime-instance", f"unit-{number}")
        wait_until(deleted, 60, lambda: "children of the unit still exist")
    wait_until(lambda: len(watch.started) >= 2 * rounds, 60, lambda: f"only {len(watch.started)} pods have started")
    watch_client.close()
    assert watch.overlaps == []


def create(kube: Client, manifest: dict[str, Any]) -> str:
    """Create a unit and return its UID."""
    metadata = manifest["metadata"]
    created = kube.create(UNIT(metadata=ObjectMeta(**metadata), spec=manifest["spec"]), namespace=metadata["namespace"])
    return str(created.metadata and created.metadata.uid)


def is_ready(kube: Client, namespace: str, name: str) -> bool:
    status: Any = kube.get(UNIT, name, namespace=namespace).status
    return bool(status and status.get("phase") == "Ready")
