"""The last GPU changes hands fifty times, and no two pods ever hold it at once."""

import threading
import uuid
from collections.abc import Iterator
from typing import Self

import httpx2
import pytest
from lightkube.resources.core_v1 import Node, Pod

from localcluster.control_plane import ControlPlane
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, UNIT, ControllerCluster, Object, as_dict

ROUNDS = 50
ALL_GPUS = 37
"""As many as the one node has, and no other: who holds them holds the last GPU."""


class GpuUsageWatch:
    """Watches every pod of the cluster that asks for those GPUs, with other eyes than the product's."""

    def __init__(self, plane: ControlPlane) -> None:
        self._plane = plane
        self._pods: dict[str, Object] = {}
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self.events = 0
        self.most = 0
        """The most pods that held the GPUs at a time: bound to the node, and not ended."""
        self.overlaps: list[list[str]] = []
        """Pods that were there at the same time, bound or not."""

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()

    def none(self) -> bool:
        return not self._pods

    def _watch(self) -> None:
        with self._plane.client() as kube:
            try:
                for event, found in kube.watch(Pod, namespace="*"):
                    if self._stopped.is_set():
                        return
                    self._note(event, as_dict(found))
            except httpx2.HTTPError:
                assert self._stopped.is_set()

    def _note(self, event: str, pod: Object) -> None:
        limits = pod["spec"]["containers"][0].get("resources", {}).get("limits", {})
        if limits.get("nvidia.com/gpu") != str(ALL_GPUS):
            return
        self.events += 1
        if event == "DELETED" or pod["status"].get("phase") in ("Succeeded", "Failed"):
            self._pods.pop(pod["metadata"]["uid"], None)
        else:
            self._pods[pod["metadata"]["uid"]] = pod
        self.most = max(self.most, sum("nodeName" in each["spec"] for each in self._pods.values()))
        if event == "ADDED" and len(self._pods) > 1:
            self.overlaps.append([each["metadata"]["name"] for each in self._pods.values()])


@pytest.fixture
def full_node(cluster: ControllerCluster, garbage_collector_ready: None) -> Iterator[str]:
    name = f"last-{uuid.uuid4().hex[:6]}"
    cluster.add_node(name, ALL_GPUS)
    yield name
    cluster.kube.delete(Node, name)


def test_fifty_gpu_handovers_never_overlap(cluster: ControllerCluster, namespace: str, full_node: str) -> None:
    envelope = {"specName": "g1.1", "gpu": ALL_GPUS}
    with GpuUsageWatch(cluster.control_plane) as holders:
        for number in range(ROUNDS):
            stock = f"last-{number}"
            made = cluster.create(UNIT, "runtime-stock", stock, envelope)
            cluster.wait_reason(UNIT, "runtime-stock", stock, "UnitReady")
            source = {
                f"{GROUP}/source-stock-name": stock,
                f"{GROUP}/source-stock-namespace": "runtime-stock",
                f"{GROUP}/source-stock-uid": made["metadata"]["uid"],
                f"{GROUP}/source-stock-node": full_node,
            }
            active = f"a-{number}"
            # As the API does it: the stock goes, and the active unit comes without waiting for that.
            cluster.kube.delete(UNIT, stock, namespace="runtime-stock")
            cluster.create(UNIT, namespace, active, envelope | {"image": "python"}, annotations=source)
            cluster.wait_reason(UNIT, namespace, active, "UnitReady")
            assert holders.most == 1, "no two pods hold it"
            cluster.kube.delete(UNIT, active, namespace=namespace)
            wait_until(holders.none, 60, lambda: "a pod stays")
        assert holders.events >= 4 * ROUNDS, "each pod was seen to come and go"
        print(f"pods that waited beside the holder: {holders.overlaps}")
        # The unit's pod is not even made before the stock's is gone. Once in a while something else makes a second one,
        # which waits and holds nothing.
        assert len(holders.overlaps) <= ROUNDS // 10
