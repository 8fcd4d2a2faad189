"""Fifty handovers of the GPUs of a full node: two pods never hold the GPUs at the same time."""

import threading
import uuid
from collections.abc import Iterator
from typing import Self

import httpx2
import pytest
from lightkube.resources.apps_v1 import Deployment
from lightkube.resources.core_v1 import Node, Pod

from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, UNIT, ControllerCluster, Object, as_dict

ROUNDS = 50
ALL_GPUS = 37
"""Only one node has this number of GPUs. A pod that requests it holds all GPUs of that node."""


class GpuUsageWatch:
    """Watches every pod that requests these GPUs, with a client that is independent of the product code."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._pods: dict[str, Object] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.events = 0
        self.max_concurrent_holders = 0
        """The maximum number of pods that were bound to the node and not finished at the same time."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def has_no_pods(self) -> bool:
        return not self._pods

    def _watch(self) -> None:
        with self._plane.client() as kube:
            try:
                for event, found in kube.watch(Pod, namespace="*"):
                    if self._stopped.is_set():
                        return
                    self._record(event, as_dict(found))
            except httpx2.HTTPError:
                assert self._stopped.is_set()

    def _record(self, event: str, pod: Object) -> None:
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        if limits.get("nvidia.com/gpu") != str(ALL_GPUS):
            return
        self.events += 1
        if event == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._pods.pop(pod["metadata"]["uid"], None)
        else:
            self._pods[pod["metadata"]["uid"]] = pod
        bound = sum("nodeName" in each["spec"] for each in self._pods.values())
        self.max_concurrent_holders = max(self.max_concurrent_holders, bound)


@pytest.fixture
def full_node(cluster: ControllerCluster, garbage_collector_ready: None) -> Iterator[str]:
    name = f"last-{uuid.uuid4().hex[:6]}"
    cluster.add_node(name, ALL_GPUS)
    yield name
    wait_until(lambda: not pods_on(cluster, name), 60, lambda: f"pods remain on the node: {pods_on(cluster, name)}")
    cluster.kube.delete(Node, name)


def pods_on(cluster: ControllerCluster, node: str) -> list[str]:
    pods = [as_dict(each) for each in cluster.kube.list(Pod, namespace="*")]
    return [each["metadata"]["name"] for each in pods if each["spec"].get("nodeName") == node]


def test_fifty_gpu_handovers_never_overlap(cluster: ControllerCluster, namespace: str, full_node: str) -> None:
    reservation = {"specName": "g1.1", "gpu": ALL_GPUS}
    with GpuUsageWatch(cluster.control_plane) as usage:
        for number in range(ROUNDS):
            stock = f"last-{number}"
            created = cluster.create(UNIT, "runtime-stock", stock, reservation)
            cluster.wait_reason(UNIT, "runtime-stock", stock, "UnitReady")
            source = {
                f"{GROUP}/source-stock-name": stock,
                f"{GROUP}/source-stock-namespace": "runtime-stock",
                f"{GROUP}/source-stock-uid": created["metadata"]["uid"],
                f"{GROUP}/source-stock-node": full_node,
            }
            active = f"a-{number}"
            # Like the API: delete the stock unit, and create the active unit without waiting for the deletion.
            cluster.kube.delete(UNIT, stock, namespace="runtime-stock")
            cluster.create(UNIT, namespace, active, reservation | {"image": "python"}, annotations=source)
            cluster.wait_reason(UNIT, namespace, active, "UnitReady")
            assert usage.max_concurrent_holders == 1, "two pods never hold the GPUs"
            cluster.kube.delete(UNIT, active, namespace=namespace)
            wait_until(usage.has_no_pods, 60, lambda: "a pod still exists")
        assert usage.events >= 4 * ROUNDS, "the watch saw the creation and the deletion of each pod"


def test_unit_that_lost_its_gpus_to_other_stock_preempts_it(
    cluster: ControllerCluster, namespace: str, full_node: str
) -> None:
    """A stock pod that waits for GPUs may get them first. After 10 s, the unit gets a pod that may preempt."""
    reservation = {"specName": "g1.1", "gpu": ALL_GPUS}
    created = cluster.create(UNIT, "runtime-stock", "consumed", reservation)
    cluster.wait_reason(UNIT, "runtime-stock", "consumed", "UnitReady")
    cluster.create(UNIT, "runtime-stock", "waiting", reservation)
    cluster.wait_reason(UNIT, "runtime-stock", "waiting", "PodStartupFailed")
    source = {
        f"{GROUP}/source-stock-name": "consumed",
        f"{GROUP}/source-stock-namespace": "runtime-stock",
        f"{GROUP}/source-stock-uid": created["metadata"]["uid"],
    }
    cluster.create(UNIT, namespace, "late", reservation | {"image": "python"}, annotations=source)
    cluster.wait_reason(UNIT, namespace, "late", "StockReleasing")
    cluster.kube.delete(UNIT, "consumed", namespace="runtime-stock")
    cluster.wait_reason(UNIT, namespace, "late", "UnitReady")
    deployment = cluster.get(Deployment, namespace, "late")
    assert deployment
    print(f"the unit became Ready with {deployment['spec']['template']['spec']['priorityClassName']}")
    cluster.kube.delete(UNIT, "late", namespace=namespace)
    cluster.kube.delete(UNIT, "waiting", namespace="runtime-stock")
