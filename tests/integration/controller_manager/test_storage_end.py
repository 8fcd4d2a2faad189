"""The end of a storage: after its last mount, with its claim, in whatever order things are deleted."""

from collections.abc import Callable
from signal import Signals
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Namespace, PersistentVolumeClaim, Pod

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import (
    GROUP,
    QUICK_ELECTION,
    STORAGE,
    UNIT,
    Cluster,
    Object,
    own_namespace,
    ready,
)
from tests.integration.controller_manager.test_storage_attachment import (
    MOUNTING,
    attach,
    hold_pod,
    operation,
    wait_holder,
)

CLAIM = PersistentVolumeClaim
PROTECTED = {"metadata": {"finalizers": [f"{GROUP}/storage-protection"]}}


def delete(cluster: Cluster, namespace: str, cascade: str = "background") -> None:
    cluster.plane.kubectl("delete", "gpustorage", "data", "-n", namespace, f"--cascade={cascade}", "--wait=false")


def wait_gone(cluster: Cluster, namespace: str, timeout: float = 60) -> None:
    """The storage is gone, and its claim was gone before."""
    wait_until(
        lambda: cluster.gone(STORAGE, namespace, "data"),
        timeout,
        lambda: f"still there: {cluster.get(STORAGE, namespace, 'data')}",
    )
    assert cluster.gone(CLAIM, namespace, "data")


def wait_deleting(cluster: Cluster, namespace: str, said: str) -> Object:
    return cluster.wait(
        STORAGE,
        namespace,
        "data",
        lambda found: ready(found).get("reason") == "Deleting" and said in ready(found)["message"],
    )


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_a_storage_that_nobody_mounts_goes_with_its_claim(
    cluster: Cluster, collecting: None, namespace: str, cascade: str
) -> None:
    cluster.storage(namespace, "data")
    delete(cluster, namespace, cascade)
    wait_gone(cluster, namespace)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_a_mounted_storage_goes_only_after_its_last_pod(
    cluster: Cluster, collecting: None, namespace: str, cascade: str
) -> None:
    cluster.storage(namespace, "data")
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    delete(cluster, namespace, cascade)
    wait_deleting(cluster, namespace, "the deletion waits for GPUUnit web, ")
    claim = cluster.get(CLAIM, namespace, "data")
    assert claim
    assert "deletionTimestamp" not in claim["metadata"]
    assert ready(cluster.get(UNIT, namespace, "web") or {})["reason"] == "UnitReady", "the unit does not mind"
    let_go = hold_pod(cluster, namespace, "web")
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    waiting = wait_deleting(cluster, namespace, "the deletion waits for Pod web-")
    assert waiting["status"]["phase"] == "Ready"
    assert "deletionTimestamp" not in (cluster.get(CLAIM, namespace, "data") or {})["metadata"]
    let_go()
    wait_gone(cluster, namespace)


def test_a_unit_deleted_in_any_manner_leaves_the_data(cluster: Cluster, collecting: None, namespace: str) -> None:
    cluster.storage(namespace, "data")
    before = cluster.get(CLAIM, namespace, "data")
    assert before
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.plane.kubectl("delete", "gpuunit", "web", "-n", namespace, "--cascade=foreground")
    wait_holder(cluster, namespace, None)
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.plane.kubectl("delete", "gpuunit", "web", "-n", namespace, "--cascade=orphan")
    cluster.touch(STORAGE, namespace, "data")
    wait_holder(cluster, namespace, "web")  # its pod runs on
    cluster.create(UNIT, namespace, "web", MOUNTING)  # and is taken over
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    after = cluster.get(CLAIM, namespace, "data")
    assert after
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_a_claim_that_somebody_else_holds_holds_the_storage(cluster: Cluster, namespace: str) -> None:
    cluster.storage(namespace, "data")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    container = {"name": "main", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    spec = {"containers": [container], "volumes": [volume]}
    stranger: Any = Pod.from_dict({"metadata": {"name": "stranger"}, "spec": spec})
    cluster.kube.create(stranger, namespace=namespace)
    cluster.wait(Pod, namespace, "stranger", lambda found: found["status"]["phase"] == "Running")
    delete(cluster, namespace)
    wait_deleting(cluster, namespace, "PersistentVolumeClaim data, which kubernetes.io/pvc-protection holds")
    cluster.kube.delete(Pod, "stranger", namespace=namespace)
    wait_gone(cluster, namespace)


def test_an_operation_that_made_no_unit_does_not_hold_a_storage_that_is_deleted(
    cluster: Cluster, namespace: str
) -> None:
    cluster.storage(namespace, "data")
    operation(cluster, f"{namespace}-slow", namespace, "Running")
    attach(cluster, namespace, f"{namespace}-slow")
    delete(cluster, namespace)
    wait_gone(cluster, namespace)


def test_a_namespace_with_units_and_storages_in_every_state_ends(cluster: Cluster, collecting: None) -> None:
    with own_namespace(cluster) as namespace:
        cluster.storage(namespace, "data")
        cluster.create(UNIT, namespace, "web", MOUNTING)
        cluster.create(STORAGE, namespace, "without-class", {"size": "1Gi", "storageClassName": "nowhere"})
        cluster.create(STORAGE, namespace, "bad", {"size": "many"})
        cluster.create(STORAGE, namespace, "reserved", {"size": "1Gi", "attachedTo": {"unit": "x", "operationID": "y"}})
        cluster.storage(namespace, "lost")
        cluster.kube.delete(CLAIM, "lost", namespace=namespace)
        cluster.wait_reason(STORAGE, namespace, "lost", "ClaimLost")
        cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
        cluster.wait_reason(STORAGE, namespace, "without-class", "ClaimPending")
    wait_until(lambda: is_gone(cluster, namespace), 180, lambda: f"{cluster.all(STORAGE, namespace)}")


def test_namespaces_deleted_in_any_manner_end_with_their_mounted_storages(cluster: Cluster, collecting: None) -> None:
    """All at once, since Kubernetes takes its time for each of them."""
    manners = [(cascade, first) for cascade in ("background", "foreground", "orphan") for first in ("storage", "space")]
    namespaces = [f"end-{cascade}-{first}-first" for cascade, first in manners]
    for namespace in namespaces:
        cluster.kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
        cluster.storage(namespace, "data")
        cluster.create(UNIT, namespace, "web", MOUNTING)
        cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    for namespace, (cascade, first) in zip(namespaces, manners, strict=True):
        storage = ("gpustorage", "data", f"--namespace={namespace}", "--ignore-not-found")
        both = (storage, ("namespace", namespace))
        for what in both if first == "storage" else reversed(both):
            cluster.plane.kubectl("delete", *what, f"--cascade={cascade}", "--wait=false")
    wait_until(lambda: all(is_gone(cluster, each) for each in namespaces), 180, lambda: f"not all of {namespaces} end")


def is_gone(cluster: Cluster, namespace: str) -> bool:
    try:
        cluster.kube.get(Namespace, namespace)
    except ApiError as error:
        return error.status.code == 404
    return False


def unit_gone(cluster: Cluster, namespace: str) -> None:
    cluster.kube.delete(UNIT, "web", namespace=namespace)


def mount_dropped(cluster: Cluster, namespace: str) -> None:
    cluster.patch(UNIT, namespace, "web", {"spec": {"storageMounts": None}})


def deleted(cluster: Cluster, namespace: str) -> None:
    unit_gone(cluster, namespace)
    delete(cluster, namespace)


def claim_deleted(cluster: Cluster, namespace: str) -> None:
    deleted(cluster, namespace)
    cluster.kube.delete(CLAIM, "data", namespace=namespace)


def claim_gone(cluster: Cluster, namespace: str) -> None:
    claim_deleted(cluster, namespace)
    wait_until(lambda: cluster.gone(CLAIM, namespace, "data"), 60, lambda: "the claim is still mounted")


RELEASES = (unit_gone, mount_dropped)
ENDS = (deleted, claim_deleted, claim_gone)


def test_whatever_a_killed_manager_left_is_finished_by_the_next(spare: Cluster) -> None:
    """Every step of a release and of an end is made without a manager, as if it had been killed right then."""
    steps: tuple[Callable[[Cluster, str], None], ...] = (*RELEASES, *ENDS)
    manager = spare.manager(leaderElection=QUICK_ELECTION).wait_leading()
    namespaces = {step: f"killed-{step.__name__.replace('_', '-')}" for step in steps}
    for namespace in namespaces.values():
        spare.plane.kubectl("create", "namespace", namespace)
        spare.storage(namespace, "data")
        spare.create(UNIT, namespace, "web", MOUNTING)
    for namespace in namespaces.values():
        spare.wait_reason(UNIT, namespace, "web", "UnitReady")
    manager.end(Signals.SIGKILL)
    for step, namespace in namespaces.items():
        step(spare, namespace)
    # Before its claim is made, a storage is protected; before a pod mounts it, it is attached.
    spare.plane.kubectl("create", "namespace", "killed-early")
    spare.volume("killed-early", "data")
    spare.create(STORAGE, "killed-early", "data", {"size": "1Gi"}, **PROTECTED["metadata"])
    spare.create(UNIT, "killed-early", "web", MOUNTING)
    spare.manager(leaderElection=QUICK_ELECTION).wait_leading()
    spare.wait_reason(UNIT, "killed-early", "web", "UnitReady")
    for release in RELEASES:
        wait_holder(spare, namespaces[release], None)
    for end in ENDS:
        wait_gone(spare, namespaces[end])
    for namespace in (*namespaces.values(), "killed-early"):
        spare.kube.delete(Namespace, namespace)
