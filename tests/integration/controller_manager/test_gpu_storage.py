"""GPUStorages on a real API server: PVCs, every reason, drift and resize. The tests act as the provisioner."""

import contextlib
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, PersistentVolume, PersistentVolumeClaim, ResourceQuota
from lightkube.resources.storage_v1 import StorageClass

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import (
    DEFAULT_STORAGE_CLASS,
    GROUP,
    STORAGE,
    UNIT,
    ControllerCluster,
    Object,
    as_dict,
    ready_condition,
)
from tests.integration.controller_manager.test_drift import assert_no_writes

PVC = PersistentVolumeClaim
LABELS = {"app.kubernetes.io/managed-by": "gpu-runtime", f"{GROUP}/storage": "data"}
SMALL = {"specName": "g1.1", "image": "python"}


def pvc(namespace: str, labels: dict[str, str], size: str = "1Gi", storage_class: str = DEFAULT_STORAGE_CLASS) -> Any:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    resources = {"requests": {"storage": size}}
    metadata = {"name": "data", "namespace": namespace, "labels": labels}
    return PVC.from_dict({"metadata": metadata, "spec": spec | {"resources": resources}})


def readiness(found: Object) -> tuple[str, str, str]:
    return found["status"]["phase"], ready_condition(found)["status"], ready_condition(found)["reason"]


def get_pvc(cluster: ControllerCluster, namespace: str) -> Object:
    found = cluster.get(PVC, namespace, "data")
    assert found
    return found


def record_provisioner_warning(cluster: ControllerCluster, pvc: Object, note: str) -> None:
    """Create the warning event of a provisioner that cannot create a volume."""
    metadata = pvc["metadata"]
    subject = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    subject |= {part: metadata[part] for part in ("namespace", "name", "uid")}
    event = {
        "metadata": {"name": "provisioner-warning"},
        "type": "Warning",
        "reason": "ProvisioningFailed",
        "message": note,
    }
    warning: Any = Event.from_dict(event | {"involvedObject": subject})
    cluster.kube.create(warning, namespace=metadata["namespace"])


def test_storage_gets_a_pvc_and_becomes_ready(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    waiting = cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    assert readiness(waiting) == ("Pending", "False", "ClaimPending")
    assert "StorageClass rook-ceph-block does not exist: create it" in ready_condition(waiting)["message"]
    assert waiting["metadata"]["finalizers"] == [f"{GROUP}/storage-protection"]
    created = get_pvc(cluster, namespace)
    assert created["metadata"]["labels"] == LABELS
    assert "ownerReferences" not in created["metadata"]
    assert created["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert created["spec"]["storageClassName"] == DEFAULT_STORAGE_CLASS
    assert created["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    cluster.create_volume(namespace, "data")
    done = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert readiness(done) == ("Ready", "True", "StorageReady")
    status = done["status"]
    assert (status["claimName"], status["capacity"]) == ("data", "1Gi")
    assert status["observedGeneration"] == done["metadata"]["generation"]
    assert "mountedBy" not in status
    assert_no_writes(cluster, STORAGE, namespace, "data")

    def event_reasons() -> list[str]:
        events = [as_dict(each) for each in cluster.kube.list(Event, namespace=namespace)]
        return [each["reason"] for each in events if each["involvedObject"]["kind"] == "GPUStorage"]

    wait_until(lambda: {"ClaimPending", "StorageReady"} <= set(event_reasons()), 60, lambda: str(event_reasons()))


def test_invalid_size_is_reported_and_recovers_when_corrected(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "many"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "InvalidSpec")
    assert readiness(failed) == ("Failed", "False", "InvalidSpec")
    assert "spec.size: 'many' is not a quantity" in ready_condition(failed)["message"]
    assert cluster.is_deleted(PVC, namespace, "data")
    cluster.create_volume(namespace, "data")
    cluster.merge_patch(STORAGE, namespace, "data", {"spec": {"size": "1Gi"}})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")


def test_pvc_waits_for_its_provisioner_or_first_consumer(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_storage_class("immediate")
    cluster.create_storage_class("on-demand", binding="WaitForFirstConsumer")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": "immediate"})
    waiting = cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    assert "provisioner example.com/missing of StorageClass immediate" in ready_condition(waiting)["message"]
    record_provisioner_warning(cluster, get_pvc(cluster, namespace), "rpc error: no such pool")
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    cluster.wait_for(
        STORAGE,
        namespace,
        "data",
        lambda found: ready_condition(found)["message"].endswith(": rpc error: no such pool"),
    )
    cluster.create(STORAGE, namespace, "lazy", {"size": "1Gi", "storageClassName": "on-demand"})
    lazy = cluster.wait_reason(STORAGE, namespace, "lazy", "WaitForFirstConsumer")
    assert readiness(lazy) == ("Pending", "False", "WaitForFirstConsumer")
    cluster.create(UNIT, namespace, "a", SMALL | {"storageMounts": [{"name": "lazy", "mountPath": "/data"}]})
    # The pod of the unit is the first consumer. No provisioner runs, so the test creates the volume.
    chosen = cluster.wait_for(STORAGE, namespace, "lazy", lambda found: "for node" in ready_condition(found)["message"])
    assert chosen["status"]["mountedBy"] == "a"
    cluster.create_volume(namespace, "lazy", storage_class="on-demand")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.wait_reason(STORAGE, namespace, "lazy", "StorageReady")


def test_storage_class_created_later_is_used(cluster: ControllerCluster, namespace: str) -> None:
    name = f"late-{namespace}"
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": name})
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    cluster.create_storage_class(name, binding="WaitForFirstConsumer")
    cluster.wait_reason(STORAGE, namespace, "data", "WaitForFirstConsumer")


def test_changed_pvc_metadata_is_corrected(cluster: ControllerCluster, namespace: str) -> None:
    storage = cluster.create_ready_storage(namespace, "data")
    before = get_pvc(cluster, namespace)
    owner = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "GPUStorage",
        "name": "data",
        "uid": storage["metadata"]["uid"],
    }
    changes: list[Object] = [
        {"labels": {f"{GROUP}/storage": None}},
        {"labels": {f"{GROUP}/storage": "other"}},
        {"labels": {"app.kubernetes.io/managed-by": None}},
        {"labels": {"app.kubernetes.io/managed-by": "other"}},
        {"annotations": {f"{GROUP}/storage-uid": None}},
        {"ownerReferences": [owner]},
    ]
    parts = ("labels", "annotations", "ownerReferences", "uid")
    for change in changes:
        cluster.merge_patch(PVC, namespace, "data", {"metadata": change})
        cluster.wait_for(
            PVC,
            namespace,
            "data",
            lambda found: all(found["metadata"].get(part) == before["metadata"].get(part) for part in parts),
        )
    cluster.merge_patch(PVC, namespace, "data", {"metadata": {"labels": {"example.com/team": "a"}}})
    assert_no_writes(cluster, STORAGE, namespace, "data")
    assert get_pvc(cluster, namespace)["metadata"]["labels"]["example.com/team"] == "a"


def test_storage_grows_if_its_class_allows_expansion(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_storage_class("growing", allow_expansion=True)
    cluster.create_volume(namespace, "data", storage_class="growing")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": "growing"})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    cluster.merge_patch(STORAGE, namespace, "data", {"spec": {"size": "2048Mi"}})
    growing = cluster.wait_reason(STORAGE, namespace, "data", "ResizePending")
    assert readiness(growing) == ("Ready", "False", "ResizePending")
    assert "the volume is being expanded from 1Gi to 2Gi" in ready_condition(growing)["message"]
    assert growing["status"]["capacity"] == "1Gi"
    assert get_pvc(cluster, namespace)["spec"]["resources"]["requests"]["storage"] == "2Gi"
    resize_pending = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod to finish"}
    cluster.patch_status(PVC, namespace, "data", {"conditions": [resize_pending]})
    cluster.wait_for(
        STORAGE, namespace, "data", lambda found: "start a pod to finish" in ready_condition(found)["message"]
    )
    cluster.patch_status(PVC, namespace, "data", {"conditions": None, "capacity": {"storage": "2Gi"}})
    grown = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert grown["status"]["capacity"] == "2Gi"
    assert_no_writes(cluster, STORAGE, namespace, "data")


def test_rejected_resize_preserves_the_data_and_reports_the_cause(cluster: ControllerCluster, namespace: str) -> None:
    name = f"fixed-{namespace}"
    cluster.create_storage_class(name)
    cluster.create_volume(namespace, "data", storage_class=name)
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": name})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    cluster.merge_patch(STORAGE, namespace, "data", {"spec": {"size": "2Gi"}})
    refused = cluster.wait_reason(STORAGE, namespace, "data", "ResizeRefused")
    assert readiness(refused) == ("Ready", "False", "ResizeRefused")
    assert f"StorageClass {name} does not allow volume expansion: set its allowVolumeExpansion" in str(
        ready_condition(refused)
    )
    assert refused["status"]["capacity"] == "1Gi"
    assert get_pvc(cluster, namespace)["spec"]["resources"]["requests"]["storage"] == "1Gi"
    # The storage can still be mounted.
    cluster.create(UNIT, namespace, "a", SMALL | {"storageMounts": [{"name": "data", "mountPath": "/data"}]})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    quota = ResourceQuota(
        metadata=ObjectMeta(name="little"), spec=ResourceQuotaSpec(hard={"requests.storage": "1536Mi"})
    )
    cluster.kube.create(quota, namespace=namespace)
    cluster.wait_for(ResourceQuota, namespace, "little", lambda found: "used" in found.get("status", {}))
    cluster.kube.patch(StorageClass, name, {"allowVolumeExpansion": True})
    cluster.wait_for(
        STORAGE, namespace, "data", lambda found: "exceeded quota: little" in ready_condition(found)["message"]
    )
    cluster.kube.delete(ResourceQuota, "little", namespace=namespace)
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    cluster.wait_reason(STORAGE, namespace, "data", "ResizePending")


def test_foreign_pvc_is_never_modified(cluster: ControllerCluster, namespace: str) -> None:
    cluster.kube.create(pvc(namespace, {"app": "foreign"}), namespace=namespace)
    before = get_pvc(cluster, namespace)
    cluster.create(STORAGE, namespace, "data", {"size": "2Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "NameTaken")
    assert readiness(failed) == ("Failed", "False", "NameTaken")
    assert (
        "already exists and does not belong to this GPUStorage: create the GPUStorage with another name"
        in ready_condition(failed)["message"]
    )
    assert "claimName" not in failed["status"]
    cluster.kube.delete(STORAGE, "data", namespace=namespace)
    wait_until(lambda: cluster.is_deleted(STORAGE, namespace, "data"), 60, lambda: "the storage still exists")
    after = get_pvc(cluster, namespace)
    assert "deletionTimestamp" not in after["metadata"]
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


def test_pvc_with_the_storage_label_is_adopted(cluster: ControllerCluster, namespace: str) -> None:
    """This happens after a restore from a backup: objects are created in any order, with other UIDs and no status."""
    cluster.create_volume(namespace, "data", size="3Gi")
    cluster.kube.create(pvc(namespace, {f"{GROUP}/storage": "data"}, size="3Gi"), namespace=namespace)
    before = cluster.wait_for(PVC, namespace, "data", lambda found: found["status"]["phase"] == "Bound")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    adopted = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert adopted["status"]["capacity"] == "3Gi"
    after = get_pvc(cluster, namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"] == LABELS
    assert after["metadata"]["annotations"][f"{GROUP}/storage-uid"] == adopted["metadata"]["uid"]
    assert_no_writes(cluster, STORAGE, namespace, "data")


def test_adopted_pvc_of_another_class_is_reported(cluster: ControllerCluster, namespace: str) -> None:
    cluster.kube.create(pvc(namespace, LABELS, storage_class="other"), namespace=namespace)
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "ClaimSyncFailed")
    assert "has StorageClass other instead of rook-ceph-block" in ready_condition(failed)["message"]


def test_rejected_pvc_is_reported(cluster: ControllerCluster, namespace: str) -> None:
    quota = ResourceQuota(
        metadata=ObjectMeta(name="nothing"), spec=ResourceQuotaSpec(hard={"persistentvolumeclaims": "0"})
    )
    cluster.kube.create(quota, namespace=namespace)
    cluster.wait_for(ResourceQuota, namespace, "nothing", lambda found: "hard" in found.get("status", {}))
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "ClaimSyncFailed")
    assert readiness(failed) == ("Failed", "False", "ClaimSyncFailed")
    assert "the API server rejected the PersistentVolumeClaim: " in ready_condition(failed)["message"]
    assert "exceeded quota: nothing" in ready_condition(failed)["message"]
    cluster.kube.delete(ResourceQuota, "nothing", namespace=namespace)
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")


@pytest.mark.parametrize("lost", ["volume", "pvc"])
def test_lost_volume_or_pvc_is_reported_and_never_recreated(
    cluster: ControllerCluster, namespace: str, lost: str
) -> None:
    cluster.create_ready_storage(namespace, "data")
    if lost == "volume":
        volume = f"{namespace}-data"
        delete_volume(cluster, volume)
        message = f"PersistentVolume {volume} does not exist any more"
    else:
        cluster.kube.delete(PVC, "data", namespace=namespace)
        message = "was deleted by another client, and its data is lost: restore the PVC"
    failed = cluster.wait_for(STORAGE, namespace, "data", lambda found: message in ready_condition(found)["message"])
    assert readiness(failed) == ("Failed", "False", "ClaimLost")
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert cluster.is_deleted(PVC, namespace, "data") == (lost == "pvc")
    cluster.kube.delete(STORAGE, "data", namespace=namespace)
    wait_until(
        lambda: cluster.is_deleted(STORAGE, namespace, "data"),
        60,
        lambda: "the lost PVC blocks the deletion of the storage",
    )


def delete_volume(cluster: ControllerCluster, name: str) -> None:
    """Delete a volume, and then remove its finalizer. In the other order, Kubernetes restores the finalizer."""
    cluster.kube.delete(PersistentVolume, name)
    with contextlib.suppress(ApiError):  # the volume had no finalizer and is already deleted
        cluster.kube.patch(PersistentVolume, name, {"metadata": {"finalizers": None}})


def test_pvc_that_never_had_data_is_recreated(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    first = get_pvc(cluster, namespace)
    cluster.kube.delete(PVC, "data", namespace=namespace)
    cluster.wait_for(PVC, namespace, "data", lambda found: found["metadata"]["uid"] != first["metadata"]["uid"])


def test_foreign_storage_status_is_corrected(cluster: ControllerCluster, namespace: str) -> None:
    before = cluster.create_ready_storage(namespace, "data")["status"]
    cluster.patch_status(STORAGE, namespace, "data", {"phase": "Failed", "mountedBy": "other", "conditions": None})
    corrected = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")["status"]
    assert (corrected["phase"], corrected.get("mountedBy")) == (before["phase"], None)
