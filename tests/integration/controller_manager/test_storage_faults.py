"""Storages while controller managers are killed repeatedly: never mounted twice, and always released."""

import contextlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from lightkube.resources.core_v1 import PersistentVolumeClaim

from tests.integration.controller_manager.conftest import GROUP, UNIT, ControllerCluster, wait_garbage_collector
from tests.integration.controller_manager.test_live_storage_attachment import MOUNTING, pods, wait_attached_to

ROUNDS = 3
NO_LEADER_ELECTION = {"enabled": False}
"""At most one manager runs, so it needs no Lease and does not wait for one."""


@contextlib.contextmanager
def recording_pod_events(cluster: ControllerCluster, namespace: str, events: Path) -> Iterator[None]:
    """Record all events of the pods of the namespace to a file, with a kubectl process."""
    program = [str(cluster.control_plane.binary_paths["kubectl"]), f"--kubeconfig={cluster.control_plane.kubeconfig}"]
    arguments = ["get", "pods", f"--namespace={namespace}", "--watch", "--output-watch-events", "--output=json"]
    with events.open("wb") as output, subprocess.Popen([*program, *arguments], stdout=output) as watching:
        yield
        watching.terminate()


def mounting_units(events: Path) -> Iterator[dict[str, str]]:
    """Yield after every event the UIDs of the pods that mount the PVC, with the UIDs of their units."""
    decoder, text, mounting = json.JSONDecoder(), events.read_text().strip(), dict[str, str]()
    while text:
        event, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        metadata = event["object"]["metadata"]
        mounting.pop(metadata["uid"], None)
        if event["type"] != "DELETED" and event["object"]["spec"].get("volumes"):
            mounting[metadata["uid"]] = metadata["labels"][f"{GROUP}/unit-uid"]
        yield dict(mounting)


def alternate_units(cluster: ControllerCluster, namespace: str) -> Iterator[None]:
    """Two unit names alternate in the use of one storage. Each unit is created before the previous pod is deleted."""
    for name in itertools.cycle(("web", "other")):
        if cluster.get(UNIT, namespace, name) is None:
            cluster.create(UNIT, namespace, name, MOUNTING)
        yield
        cluster.wait_for(UNIT, namespace, name, lambda _, name=name: bool(pods(cluster, namespace, name)))  # type: ignore[misc]
        cluster.kube.delete(UNIT, name, namespace=namespace)
        cluster.create(UNIT, namespace, name, MOUNTING)  # a successor with the same name, without a pause
        yield
        cluster.kube.delete(UNIT, name, namespace=namespace)


def test_storage_is_never_mounted_twice_and_is_released(
    unmanaged_cluster: ControllerCluster, unmanaged_namespace: str, tmp_path: Path
) -> None:
    manager = unmanaged_cluster.start_manager(leaderElection=NO_LEADER_ELECTION).wait_ready()
    wait_garbage_collector(unmanaged_cluster)
    unmanaged_cluster.create_ready_storage(unmanaged_namespace, "data")
    before = unmanaged_cluster.get(PersistentVolumeClaim, unmanaged_namespace, "data")
    with recording_pod_events(unmanaged_cluster, unmanaged_namespace, tmp_path / "pod-events"):
        for _ in itertools.islice(alternate_units(unmanaged_cluster, unmanaged_namespace), 2 * ROUNDS):
            manager.stop(Signals.SIGKILL)
            manager = unmanaged_cluster.start_manager(leaderElection=NO_LEADER_ELECTION).wait_ready()
        for name in ("web", "other"):
            if unmanaged_cluster.get(UNIT, unmanaged_namespace, name):
                unmanaged_cluster.kube.delete(UNIT, name, namespace=unmanaged_namespace)
        wait_attached_to(unmanaged_cluster, unmanaged_namespace, None)
    history = list(mounting_units(tmp_path / "pod-events"))
    assert len({pod for mounting in history for pod in mounting}) >= ROUNDS
    assert [mounting for mounting in history if len(set(mounting.values())) > 1] == []
    after = unmanaged_cluster.get(PersistentVolumeClaim, unmanaged_namespace, "data")
    assert before
    assert after
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
