"""Storages while controller managers are killed again and again: never mounted twice, never left with nobody."""

import contextlib
import itertools
import threading
from collections.abc import Iterator
from signal import Signals
from typing import Any

import httpx2
from lightkube import Client
from lightkube.resources.core_v1 import PersistentVolumeClaim, Pod

from localcluster.processes import wait_until
from tests.integration.controller_manager.conftest import STORAGE, UNIT, Cluster, as_dict
from tests.integration.controller_manager.test_storage_attachment import MOUNTING, pods, wait_holder

ROUNDS = 6
ALONE = {"enabled": False}
"""No Lease to wait for: there is never more than one."""


class Watch:
    """Follows the pods of a namespace and notes when two of different units mount the claim at a time."""

    def __init__(self, kube: Client, namespace: str) -> None:
        self.there: dict[str, str] = {}
        self.seen: set[str] = set()
        self.overlaps: list[dict[str, str]] = []
        threading.Thread(target=self._follow, args=(kube, namespace), daemon=True).start()

    def _follow(self, kube: Client, namespace: str) -> None:
        with contextlib.suppress(httpx2.HTTPError, OSError, ValueError):  # the client is closed at the end
            for operation, pod in kube.watch(Pod, namespace=namespace):
                self._note(operation, as_dict(pod))

    def _note(self, operation: str, pod: dict[str, Any]) -> None:
        uid, labels = pod["metadata"]["uid"], pod["metadata"]["labels"]
        if operation == "DELETED" or not pod["spec"].get("volumes"):
            self.there.pop(uid, None)
            return
        self.there[uid] = labels["runtime.lokiwager.io/unit-uid"]
        self.seen.add(uid)
        if len(set(self.there.values())) > 1:
            self.overlaps.append(dict(self.there))


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


def test_a_storage_is_never_mounted_twice_and_is_free_in_the_end(spare: Cluster, spare_namespace: str) -> None:
    manager = spare.manager(leaderElection=ALONE).wait_ready()
    spare.storage(spare_namespace, "data")
    claim = spare.get(PersistentVolumeClaim, spare_namespace, "data")
    assert claim
    watching = spare.plane.client()
    watch = Watch(watching, spare_namespace)
    for _ in itertools.islice(turns(spare, spare_namespace), 2 * ROUNDS):
        manager.end(Signals.SIGKILL)
        manager = spare.manager(leaderElection=ALONE).wait_ready()
    for name in ("web", "other"):
        if spare.get(UNIT, spare_namespace, name):
            spare.kube.delete(UNIT, name, namespace=spare_namespace)
    wait_holder(spare, spare_namespace, None, timeout=30)
    watching.close()
    assert len(watch.seen) >= ROUNDS
    assert watch.overlaps == []
    after = spare.get(PersistentVolumeClaim, spare_namespace, "data")
    assert after
    assert after["metadata"]["uid"] == claim["metadata"]["uid"]
    wait_until(lambda: not spare.gone(STORAGE, spare_namespace, "data"), 1, lambda: "the storage is gone")
