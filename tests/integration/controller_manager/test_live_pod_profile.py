"""A new version of the platform with another pod profile and another image of the platform restarts no pod."""

import subprocess
import sys
from typing import Any

import pytest
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Pod

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, POOL, UNIT, ControllerCluster, Object

NEXT_PROGRAM = (sys.executable, "-m", "tests.integration.controller_manager.next_profile_program")
NEXT_IMAGES = {"stock": "gpu-runtime:next", "placeholder": "gpu-runtime:next"}
FUNCTION = {"serverless": {"enabled": True, "requestID": "profile"}}
ADOPTABLE = {"image": "python", "template": {"command": ["serve"]}, "adoptable": True, "replicas": 1}
UNITS: dict[str, Object] = {"web": {}, "stopped": {}, "worker": FUNCTION}
POOLS: dict[str, Object] = {"warm": {"replicas": 1}, "prepared": ADOPTABLE}
OLD, NEW = "1", "2"


def create_all(cluster: ControllerCluster, namespace: str) -> None:
    for name, spec in UNITS.items():
        cluster.create(UNIT, namespace, name, {"specName": "g1.1", "image": "python", "gpu": 1, **spec})
    cluster.create(UNIT, "runtime-stock", namespace, {"specName": "g1.1", "gpu": 1})
    for name, spec in POOLS.items():
        cluster.create(POOL, namespace, name, {"specName": "g1.1", "gpu": 1, **spec})
    wait_all_ready(cluster, namespace)


def wait_all_ready(cluster: ControllerCluster, namespace: str) -> None:
    for name in UNITS:
        cluster.wait_reason(UNIT, namespace, name, "UnitReady")
    cluster.wait_reason(UNIT, "runtime-stock", namespace, "UnitReady")
    for name in POOLS:
        cluster.wait_reason(POOL, namespace, name, "DeploymentReady")


def pod_uids(cluster: ControllerCluster, namespace: str) -> dict[str, str]:
    """Return the names of the units and pools by the UIDs of their pods. Terminating pods do not count."""
    pods = [*cluster.list_objects(Pod, namespace), *cluster.list_objects(Pod, "runtime-stock")]
    labels = {pod["metadata"]["uid"]: pod["metadata"]["labels"] for pod in pods if is_alive(pod)}
    names = {uid: each.get(f"{GROUP}/unit") or each.get(f"{GROUP}/pool") for uid, each in labels.items()}
    return {uid: name for uid, name in names.items() if name in (*UNITS, *POOLS, namespace)}


def is_alive(pod: Object) -> bool:
    return pod["metadata"].get("deletionTimestamp") is None


def only_pod(cluster: ControllerCluster, namespace: str, unit: str) -> Object | None:
    pods = [
        pod for pod in cluster.list_objects(Pod, namespace) if pod["metadata"]["labels"].get(f"{GROUP}/unit") == unit
    ]
    return pods[0] if len(pods) == 1 and is_alive(pods[0]) else None


def wait_other_pod(cluster: ControllerCluster, namespace: str, unit: str, before: str) -> Object:
    found: list[Object] = []

    def is_replaced() -> bool:
        pod = only_pod(cluster, namespace, unit)
        found[:] = [pod] if pod is not None and pod["metadata"]["uid"] != before else []
        return bool(found)

    wait_until(is_replaced, 60, lambda: f"the pod of {unit} was not replaced")
    return found[0]


def dropped(pod: Object) -> list[str]:
    return list(pod["spec"]["containers"][0]["securityContext"]["capabilities"]["drop"])


def recorded(cluster: ControllerCluster, namespace: str, unit: str) -> tuple[str, str]:
    """Return the version in the annotation of the Deployment, and the version in the status of the unit."""
    deployment, found = cluster.get(Deployment, namespace, unit), cluster.get(UNIT, namespace, unit)
    assert deployment
    assert found
    return deployment["metadata"]["annotations"][f"{GROUP}/pod-profile"], str(found["status"]["pod"]["profile"])


def run_roll(cluster: ControllerCluster, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [*NEXT_PROGRAM, "units", "roll", "--kubeconfig", str(cluster.control_plane.kubeconfig), *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)


@pytest.fixture
def upgraded(unmanaged_cluster: ControllerCluster, unmanaged_namespace: str) -> tuple[ControllerCluster, str]:
    """A cluster whose units and pools were created before the upgrade of the controller manager."""
    unmanaged_cluster.start_manager().wait_ready().wait_leading()
    create_all(unmanaged_cluster, unmanaged_namespace)
    before = pod_uids(unmanaged_cluster, unmanaged_namespace)
    unmanaged_cluster.stop_managers()
    unmanaged_cluster.control_plane.kubectl(
        "delete", "lease", "controller-manager", "-n=runtime-system", "--ignore-not-found"
    )
    manager = unmanaged_cluster.start_manager(*NEXT_PROGRAM, images=NEXT_IMAGES).wait_ready().wait_leading()
    for kind, names in ((UNIT, UNITS), (POOL, POOLS)):
        for name in names:
            unmanaged_cluster.trigger_reconcile(kind, unmanaged_namespace, name)
    unmanaged_cluster.trigger_reconcile(UNIT, "runtime-stock", unmanaged_namespace)
    assert manager.crashes == 0
    assert pod_uids(unmanaged_cluster, unmanaged_namespace) == before
    assert len(before) == len(UNITS) + len(POOLS) + 1
    return unmanaged_cluster, unmanaged_namespace


def test_new_profile_and_new_platform_image_replace_no_pod(upgraded: tuple[ControllerCluster, str]) -> None:
    cluster, namespace = upgraded
    before = pod_uids(cluster, namespace)
    assert recorded(cluster, namespace, "web") == (OLD, OLD)
    cluster.merge_patch(UNIT, namespace, "web", {"spec": {"maxDurationSeconds": 86400}})
    cluster.wait_for(UNIT, namespace, "web", lambda unit: unit["status"].get("observedGeneration") == 2)
    changed = {"metadata": {"annotations": {f"{GROUP}/pod-profile": NEW}}}
    cluster.merge_patch(Deployment, namespace, "worker", changed)
    wait_until(lambda: recorded(cluster, namespace, "worker") == (OLD, OLD), 60, lambda: "the drift stays")
    assert pod_uids(cluster, namespace) == before


def test_pod_that_kubernetes_replaces_keeps_its_profile(upgraded: tuple[ControllerCluster, str]) -> None:
    cluster, namespace = upgraded
    pod = only_pod(cluster, namespace, "worker")
    assert pod
    cluster.kube.delete(Pod, pod["metadata"]["name"], namespace=namespace)
    replaced = wait_other_pod(cluster, namespace, "worker", pod["metadata"]["uid"])
    assert dropped(replaced) == ["NET_RAW"]
    assert replaced["spec"]["initContainers"][0]["image"] == "gpu-runtime:local"


def test_changed_and_restarted_units_get_the_new_profile(upgraded: tuple[ControllerCluster, str]) -> None:
    cluster, namespace = upgraded
    pods: dict[str, Any] = {name: only_pod(cluster, namespace, name) for name in UNITS}
    cluster.merge_patch(UNIT, namespace, "web", {"spec": {"template": {"args": ["other"]}}})
    cluster.merge_patch(UNIT, namespace, "stopped", {"spec": {"running": False}})
    cluster.wait_reason(UNIT, namespace, "stopped", "ScaledToZero")
    cluster.merge_patch(UNIT, namespace, "stopped", {"spec": {"running": True}})
    for name in ("web", "stopped"):
        replaced = wait_other_pod(cluster, namespace, name, pods[name]["metadata"]["uid"])
        assert dropped(replaced) == ["NET_RAW", "SYS_CHROOT"]
        cluster.wait_for(UNIT, namespace, name, lambda unit: unit["status"]["pod"]["profile"] == int(NEW))
        assert recorded(cluster, namespace, name) == (NEW, NEW)
    assert only_pod(cluster, namespace, "worker") is not None
    assert recorded(cluster, namespace, "worker") == (OLD, OLD)


def test_roll_replaces_only_pods_of_older_profiles(upgraded: tuple[ControllerCluster, str]) -> None:
    cluster, namespace = upgraded
    before = pod_uids(cluster, namespace)
    listed = run_roll(cluster, "--namespace", namespace, "--dry-run")
    assert (listed.returncode, listed.stdout.count("(dry run)")) == (0, len(UNITS) + len(POOLS)), listed
    assert pod_uids(cluster, namespace) == before
    rolled = run_roll(cluster, "--namespace", namespace)
    assert (rolled.returncode, rolled.stdout.count("done after")) == (0, len(UNITS) + len(POOLS)), rolled
    wait_all_ready(cluster, namespace)
    stock_pods = {uid for uid, name in before.items() if name == namespace}
    assert pod_uids(cluster, namespace).keys() & before.keys() == stock_pods
    assert {recorded(cluster, namespace, name) for name in UNITS} == {(NEW, NEW)}
    worker = only_pod(cluster, namespace, "worker")
    assert worker
    assert worker["spec"]["initContainers"][0]["image"] == "gpu-runtime:next"
    again = run_roll(cluster, "--namespace", namespace)
    assert again.stdout == "0 objects rolled; the latest pod profile is 2\n"


def test_roll_without_rights_stops_and_names_the_remedy(upgraded: tuple[ControllerCluster, str]) -> None:
    cluster, namespace = upgraded
    before = pod_uids(cluster, namespace)
    reader = cluster.control_plane.kubeconfig_for("activator", "system:serviceaccount:runtime-system:nobody")
    refused = run_roll(cluster, "--namespace", namespace, "--kubeconfig", str(reader))
    assert refused.returncode == 1
    assert "forbidden" in refused.stderr
    assert pod_uids(cluster, namespace) == before
