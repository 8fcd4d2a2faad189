"""Storages while controller managers are killed again and again: never mounted twice, never left with nobody."""

import contextlib
import itertools
import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from signal import Signals

from lightkube.resources.core_v1 import PersistentVolumeClaim

from tests.integration.controller_manager.conftest import GROUP, UNIT, Cluster, wait_collecting
from tests.integration.controller_manager.test_storage_attachment import MOUNTING, pods, wait_holder

ROUNDS = 3
ALONE = {"enabled": False}
"""No Lease to wait for: there is never more than one."""


@contextlib.contextmanager
def watched(cluster: Cluster, namespace: str, told: Path) -> Iterator[None]:
    """Writes down everything that happens to pods of the namespace, by a process of its own."""
    program = [str(cluster.plane.programs["kubectl"]), f"--kubeconfig={cluster.plane.kubeconfig}"]
    arguments = ["get", "pods", f"--namespace={namespace}", "--watch", "--output-watch-events", "--output=json"]
    with told.open("wb") as output, subprocess.Popen([*program, *arguments], stdout=output) as watching:
        yield
        watching.terminate()


def mounts(told: Path) -> Iterator[dict[str, str]]:
    """After every event: the pods that mount the claim, with the UIDs of their units."""
    decoder, text, there = json.JSONDecoder(), told.read_text().strip(), dict[str, str]()
    while text:
        event, end = decoder.raw_decode(text)
        text = text[end:].lstrip()
        metadata = event["object"]["metadata"]
        there.pop(metadata["uid"], None)
        if event["type"] != "DELETED" and event["object"]["spec"].get("volumes"):
            there[metadata["uid"]] = metadata["labels"][f"{GROUP}/unit-uid"]
        yield dict(there)


def turns(cluster: Cluster, namespace: str) -> Iterator[None]:
    """Units of two names take turns with one storage, each made before the last one's pod is gone."""
    for name in itertools.cycle(("web", "other")):
        if cluster.get(UNIT, namespace, name) is None:
            cluster.create(UNIT, namespace, name, MOUNTING)
        yield
        cluster.wait(UNIT, namespace, name, lambda _, name=name: bool(pods(cluster, namespace, name)))  # type: ignore[misc]
        cluster.kube.delete(UNIT, name, namespace=namespace)
        cluster.create(UNIT, namespace, name, MOUNTING)  # a namesake, at once
        yield
        cluster.kube.delete(UNIT, name, namespace=namespace)


def test_a_storage_is_never_mounted_twice_and_is_free_in_the_end(
    spare: Cluster, spare_namespace: str, tmp_path: Path
) -> None:
    manager = spare.manager(leaderElection=ALONE).wait_ready()
    wait_collecting(spare)
    spare.storage(spare_namespace, "data")
    claim = spare.get(PersistentVolumeClaim, spare_namespace, "data")
    with watched(spare, spare_namespace, tmp_path / "told"):
        for _ in itertools.islice(turns(spare, spare_namespace), 2 * ROUNDS):
            manager.end(Signals.SIGKILL)
            manager = spare.manager(leaderElection=ALONE).wait_ready()
        for name in ("web", "other"):
            if spare.get(UNIT, spare_namespace, name):
                spare.kube.delete(UNIT, name, namespace=spare_namespace)
        wait_holder(spare, spare_namespace, None)
    seen = list(mounts(tmp_path / "told"))
    assert len({pod for there in seen for pod in there}) >= ROUNDS
    assert [there for there in seen if len(set(there.values())) > 1] == []
    after = spare.get(PersistentVolumeClaim, spare_namespace, "data")
    assert claim
    assert after
    assert after["metadata"]["uid"] == claim["metadata"]["uid"]
