"""The local control plane is a real Kubernetes: it schedules pods, authenticates callers, and enforces policies."""

import json
import signal
import ssl
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import pytest
from lightkube import ApiError, Client, KubeConfig
from lightkube.models.apps_v1 import DeploymentSpec
from lightkube.models.core_v1 import Container, PodSpec, PodTemplateSpec, ResourceRequirements, SecurityContext
from lightkube.models.meta_v1 import LabelSelector, ObjectMeta
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Namespace, Pod

from localcluster import control_plane as control_planes
from localcluster import simulated_nodes
from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import process_exists, wait_until


def deployment(name: str, replicas: int = 1, gpus: int = 0, node: dict[str, str] | None = None) -> Deployment:
    labels = {"app": name}
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    container = Container(name="main", image="anything:1", resources=ResourceRequirements(limits=limits))
    return Deployment(
        metadata=ObjectMeta(name=name),
        spec=DeploymentSpec(
            replicas=replicas,
            selector=LabelSelector(matchLabels=labels),
            template=PodTemplateSpec(
                metadata=ObjectMeta(labels=labels), spec=PodSpec(containers=[container], nodeSelector=node)
            ),
        ),
    )


def ready_replicas(kube: Client, name: str, namespace: str) -> int:
    status = kube.get(Deployment, name, namespace=namespace).status
    return (status and status.readyReplicas) or 0


def test_a_deployment_becomes_ready_on_simulated_nodes(kube: Client, namespace: str) -> None:
    kube.create(deployment("web", replicas=5), namespace=namespace)
    wait_until(lambda: ready_replicas(kube, "web", namespace) == 5, 60, lambda: "the Deployment is not Ready")


def test_pod_beyond_the_gpu_capacity_is_pending(kube: Client, namespace: str) -> None:
    simulated_nodes.add_nodes(kube, 1, gpus=2, prefix=namespace)
    node = {"kubernetes.io/hostname": f"{namespace}-0"}
    kube.create(deployment("full", replicas=3, gpus=1, node=node), namespace=namespace)

    def unschedulable_messages() -> list[str]:
        pods = kube.list(Pod, namespace=namespace)
        conditions = [c for pod in pods if pod.status for c in pod.status.conditions or []]
        return [c.message or "" for c in conditions if c.reason == "Unschedulable"]

    wait_until(lambda: ready_replicas(kube, "full", namespace) == 2, 60, lambda: "two of three pods are not Ready")
    wait_until(
        lambda: len(unschedulable_messages()) == 1, 60, lambda: f"unschedulable pods: {unschedulable_messages()}"
    )
    assert "Insufficient nvidia.com/gpu" in unschedulable_messages()[0]


def test_anonymous_is_401_and_users_have_no_default_rights(control_plane: ControlPlane) -> None:
    anonymous = ssl.create_default_context(cafile=str(control_plane.authority.certificate))
    with pytest.raises(urllib.error.HTTPError, match="Unauthorized") as raised:
        urllib.request.urlopen(f"{control_plane.url}/api/v1/namespaces", timeout=60, context=anonymous)  # noqa: S310
    raised.value.close()
    config = KubeConfig.from_file(control_plane.kubeconfig_for("guest", "guest"))
    with Client(config=config) as guest, pytest.raises(ApiError, match='User "guest" cannot list resource "pods"'):
        list(guest.list(Pod))


def test_pod_security_label_is_enforced(kube: Client, namespace: str) -> None:
    patch = {"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "restricted"}}}
    kube.patch(Namespace, namespace, patch)
    container = Container(name="main", image="anything:1", securityContext=SecurityContext(privileged=True))
    with pytest.raises(ApiError, match='violates PodSecurity "restricted'):
        kube.create(Pod(metadata=ObjectMeta(name="root"), spec=PodSpec(containers=[container])), namespace=namespace)


def test_control_planes_run_side_by_side_and_clean_up(control_plane: ControlPlane) -> None:
    with control_planes.temporary_control_plane(nodes=1) as other:
        assert other.url != control_plane.url
        assert other.is_ready()
        assert control_plane.is_ready()
        pids = [process.pid for process in other.processes.list()]
    assert not other.state_dir.exists()
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids)


def test_killed_owner_ends_its_control_plane() -> None:
    """The kernel kills every process of a control plane when the process that started it is killed."""
    program = (
        "import json, time\n"
        "from localcluster.control_plane import temporary_control_plane\n"
        "with temporary_control_plane(nodes=0) as plane:\n"
        "    print(json.dumps([process.pid for process in plane.processes.list()]), flush=True)\n"
        "    time.sleep(600)\n"
    )
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True) as owner:
        assert owner.stdout
        pids = json.loads(owner.stdout.readline())
        owner.send_signal(signal.SIGKILL)
    assert len(pids) == 5, pids
    wait_until(lambda: not any(process_exists(pid) for pid in pids), 60, lambda: f"still running: {pids}")


def test_a_process_that_dies_is_started_again(control_plane: ControlPlane) -> None:
    before = control_plane.processes.get("kube-scheduler")
    control_plane.processes.signal("kube-scheduler", signal.SIGKILL)
    wait_until(
        lambda: control_plane.processes.get("kube-scheduler").pid not in (None, before.pid),
        60,
        lambda: "the supervisor did not restart the scheduler",
    )


def test_namespace_creation_is_fast(kube: Client, namespace: str) -> None:
    """The limit only detects a configuration that makes the creation wait, for example for a timeout."""
    started_at = time.monotonic()
    kube.create(Namespace(metadata=ObjectMeta(name=f"{namespace}-b")))
    assert time.monotonic() - started_at < 30
    kube.delete(Namespace, f"{namespace}-b")
