"""Deletion of storages: after the last mount and together with the PVC, for every order of deletions."""

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
    ControllerCluster,
    Object,
    ready_condition,
    temporary_namespace,
)
from tests.integration.controller_manager.test_live_storage_attachment import (
    MOUNTING,
    attach_storage,
    block_pod_deletion,
    record_operation,
    wait_attached_to,
)

PVC = PersistentVolumeClaim
PROTECTED = {"metadata": {"finalizers": [f"{GROUP}/storage-protection"]}}


def delete(cluster: ControllerCluster, namespace: str, cascade: str = "background") -> None:
    cluster.control_plane.kubectl(
        "delete", "gpustorage", "data", "-n", namespace, f"--cascade={cascade}", "--wait=false"
    )


def wait_storage_deleted(cluster: ControllerCluster, namespace: str, timeout: float = 60) -> None:
    """Wait until the storage is deleted, and check that its PVC was deleted before."""
    wait_until(
        lambda: cluster.is_deleted(STORAGE, namespace, "data"),
        timeout,
        lambda: f"the storage still exists: {cluster.get(STORAGE, namespace, 'data')}",
    )
    assert cluster.is_deleted(PVC, namespace, "data")


def wait_deleting(cluster: ControllerCluster, namespace: str, message: str) -> Object:
    return cluster.wait_for(
        STORAGE,
        namespace,
        "data",
        lambda found: (
            ready_condition(found).get("reason") == "Deleting" and message in ready_condition(found)["message"]
        ),
    )


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_unmounted_storage_is_deleted_with_its_pvc(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str, cascade: str
) -> None:
    cluster.create_ready_storage(namespace, "data")
    delete(cluster, namespace, cascade)
    wait_storage_deleted(cluster, namespace)


@pytest.mark.parametrize("cascade", ["background", "foreground", "orphan"])
def test_mounted_storage_is_deleted_after_its_last_pod(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str, cascade: str
) -> None:
    cluster.create_ready_storage(namespace, "data")
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    delete(cluster, namespace, cascade)
    wait_deleting(cluster, namespace, "the deletion waits for GPUUnit web, ")
    pvc = cluster.get(PVC, namespace, "data")
    assert pvc
    assert "deletionTimestamp" not in pvc["metadata"]
    assert ready_condition(cluster.get(UNIT, namespace, "web") or {})["reason"] == "UnitReady", "the unit keeps running"
    unblock_deletion = block_pod_deletion(cluster, namespace, "web")
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    waiting = wait_deleting(cluster, namespace, "the deletion waits for Pod web-")
    assert waiting["status"]["phase"] == "Ready"
    assert "deletionTimestamp" not in (cluster.get(PVC, namespace, "data") or {})["metadata"]
    unblock_deletion()
    wait_storage_deleted(cluster, namespace)


def test_deletion_of_a_unit_preserves_the_data(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str
) -> None:
    cluster.create_ready_storage(namespace, "data")
    before = cluster.get(PVC, namespace, "data")
    assert before
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.control_plane.kubectl("delete", "gpuunit", "web", "-n", namespace, "--cascade=foreground")
    wait_attached_to(cluster, namespace, None)
    cluster.create(UNIT, namespace, "web", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.control_plane.kubectl("delete", "gpuunit", "web", "-n", namespace, "--cascade=orphan")
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    wait_attached_to(cluster, namespace, "web")  # its pod keeps running
    cluster.create(UNIT, namespace, "web", MOUNTING)  # the new unit adopts the Deployment
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    after = cluster.get(PVC, namespace, "data")
    assert after
    assert (after["metadata"]["uid"], after["spec"]) == (before["metadata"]["uid"], before["spec"])


def test_pvc_in_use_by_a_foreign_pod_blocks_the_deletion(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    container = {"name": "main", "image": "x", "volumeMounts": [{"name": "data", "mountPath": "/data"}]}
    spec = {"containers": [container], "volumes": [volume]}
    foreign_pod: Any = Pod.from_dict({"metadata": {"name": "foreign"}, "spec": spec})
    cluster.kube.create(foreign_pod, namespace=namespace)
    cluster.wait_for(Pod, namespace, "foreign", lambda found: found["status"]["phase"] == "Running")
    delete(cluster, namespace)
    wait_deleting(cluster, namespace, "PersistentVolumeClaim data, which has finalizers kubernetes.io/pvc-protection")
    cluster.kube.delete(Pod, "foreign", namespace=namespace)
    wait_storage_deleted(cluster, namespace)


def test_attachment_without_a_unit_does_not_block_the_deletion(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    uid = record_operation(cluster, f"{namespace}-slow", namespace, "Running")
    attach_storage(cluster, namespace, f"{namespace}-slow", uid)
    delete(cluster, namespace)
    wait_storage_deleted(cluster, namespace)


def test_namespace_with_units_and_storages_in_every_state_is_deleted(
    cluster: ControllerCluster, garbage_collector_ready: None
) -> None:
    with temporary_namespace(cluster) as namespace:
        cluster.create_ready_storage(namespace, "data")
        cluster.create(UNIT, namespace, "web", MOUNTING)
        cluster.create(STORAGE, namespace, "without-class", {"size": "1Gi", "storageClassName": "missing"})
        cluster.create(STORAGE, namespace, "bad", {"size": "many"})
        cluster.create(
            STORAGE,
            namespace,
            "reserved",
            {"size": "1Gi", "attachedTo": {"unit": "x", "operationID": "y", "operationUID": "z"}},
        )
        cluster.create_ready_storage(namespace, "lost")
        cluster.kube.delete(PVC, "lost", namespace=namespace)
        cluster.wait_reason(STORAGE, namespace, "lost", "ClaimLost")
        cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
        cluster.wait_reason(STORAGE, namespace, "without-class", "ClaimPending")
    wait_until(
        lambda: is_namespace_deleted(cluster, namespace), 180, lambda: f"{cluster.list_objects(STORAGE, namespace)}"
    )


def test_namespace_with_mounted_storages_is_deleted(cluster: ControllerCluster, garbage_collector_ready: None) -> None:
    """The namespaces are deleted concurrently, because the deletion of each one takes long."""
    variants = [
        (cascade, first) for cascade in ("background", "foreground", "orphan") for first in ("storage", "space")
    ]
    namespaces = [f"delete-{cascade}-{first}-first" for cascade, first in variants]
    for namespace in namespaces:
        cluster.kube.create(Namespace(metadata=ObjectMeta(name=namespace)))
        cluster.create_ready_storage(namespace, "data")
        cluster.create(UNIT, namespace, "web", MOUNTING)
        cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    for namespace, (cascade, first) in zip(namespaces, variants, strict=True):
        storage = ("gpustorage", "data", f"--namespace={namespace}", "--ignore-not-found")
        both = (storage, ("namespace", namespace))
        for target in both if first == "storage" else reversed(both):
            cluster.control_plane.kubectl("delete", *target, f"--cascade={cascade}", "--wait=false")
    wait_until(
        lambda: all(is_namespace_deleted(cluster, each) for each in namespaces),
        180,
        lambda: f"not all of {namespaces} are deleted",
    )


def is_namespace_deleted(cluster: ControllerCluster, namespace: str) -> bool:
    try:
        cluster.kube.get(Namespace, namespace)
    except ApiError as error:
        return error.status.code == 404
    return False


def delete_unit(cluster: ControllerCluster, namespace: str) -> None:
    cluster.kube.delete(UNIT, "web", namespace=namespace)


def drop_mount(cluster: ControllerCluster, namespace: str) -> None:
    cluster.merge_patch(UNIT, namespace, "web", {"spec": {"storageMounts": None}})


def delete_storage(cluster: ControllerCluster, namespace: str) -> None:
    delete_unit(cluster, namespace)
    delete(cluster, namespace)


def delete_pvc(cluster: ControllerCluster, namespace: str) -> None:
    delete_storage(cluster, namespace)
    cluster.kube.delete(PVC, "data", namespace=namespace)


def delete_pvc_and_wait(cluster: ControllerCluster, namespace: str) -> None:
    delete_pvc(cluster, namespace)
    wait_until(lambda: cluster.is_deleted(PVC, namespace, "data"), 60, lambda: "the PVC still exists")


RELEASE_STEPS = (delete_unit, drop_mount)
DELETION_STEPS = (delete_storage, delete_pvc, delete_pvc_and_wait)


def test_deletion_interrupted_by_a_kill_is_finished_by_the_next_manager(unmanaged_cluster: ControllerCluster) -> None:
    """Each step of a detach and of a deletion happens while no manager runs, as after a kill at that point."""
    steps: tuple[Callable[[ControllerCluster, str], None], ...] = (*RELEASE_STEPS, *DELETION_STEPS)
    manager = unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    namespaces = {step: f"killed-{step.__name__.replace('_', '-')}" for step in steps}
    for namespace in namespaces.values():
        unmanaged_cluster.control_plane.kubectl("create", "namespace", namespace)
        unmanaged_cluster.create_ready_storage(namespace, "data")
        unmanaged_cluster.create(UNIT, namespace, "web", MOUNTING)
    for namespace in namespaces.values():
        unmanaged_cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    manager.stop(Signals.SIGKILL)
    for step, namespace in namespaces.items():
        step(unmanaged_cluster, namespace)
    # A storage gets its finalizer before its PVC is created. This one has only the finalizer.
    unmanaged_cluster.control_plane.kubectl("create", "namespace", "killed-early")
    unmanaged_cluster.create_volume("killed-early", "data")
    unmanaged_cluster.create(STORAGE, "killed-early", "data", {"size": "1Gi"}, **PROTECTED["metadata"])
    unmanaged_cluster.create(UNIT, "killed-early", "web", MOUNTING)
    unmanaged_cluster.start_manager(leaderElection=QUICK_ELECTION).wait_leading()
    unmanaged_cluster.wait_reason(UNIT, "killed-early", "web", "UnitReady")
    for step in RELEASE_STEPS:
        wait_attached_to(unmanaged_cluster, namespaces[step], None)
    for step in DELETION_STEPS:
        wait_storage_deleted(unmanaged_cluster, namespaces[step])
    for namespace in (*namespaces.values(), "killed-early"):
        unmanaged_cluster.kube.delete(Namespace, namespace)
