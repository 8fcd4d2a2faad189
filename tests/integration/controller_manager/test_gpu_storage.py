"""GPUStorages on a real API server: their claims, every reason, drift and growth. The tests play the provisioner."""

import contextlib
from typing import Any

import pytest
from lightkube import ApiError
from lightkube.models.core_v1 import ResourceQuotaSpec
from lightkube.models.meta_v1 import ObjectMeta
from lightkube.resources.core_v1 import Event, PersistentVolume, PersistentVolumeClaim, ResourceQuota
from lightkube.resources.storage_v1 import StorageClass

from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import CLASS, GROUP, STORAGE, UNIT, Cluster, Object, as_dict, ready
from tests.integration.controller_manager.test_drift import assert_quiet

CLAIM = PersistentVolumeClaim
LABELS = {"app.kubernetes.io/managed-by": "gpu-runtime", f"{GROUP}/storage": "data"}
SMALL = {"specName": "g1.1", "image": "python"}


def claim(namespace: str, labels: dict[str, str], size: str = "1Gi", storage_class: str = CLASS) -> Any:
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": storage_class}
    resources = {"requests": {"storage": size}}
    metadata = {"name": "data", "namespace": namespace, "labels": labels}
    return CLAIM.from_dict({"metadata": metadata, "spec": spec | {"resources": resources}})


def verdict(found: Object) -> tuple[str, str, str]:
    return found["status"]["phase"], ready(found)["status"], ready(found)["reason"]


def found_claim(cluster: Cluster, namespace: str) -> Object:
    found = cluster.get(CLAIM, namespace, "data")
    assert found
    return found


def complain(cluster: Cluster, claim: Object, note: str) -> None:
    """As a provisioner does that cannot make a volume."""
    about = claim["metadata"]
    subject = {"kind": "PersistentVolumeClaim", "apiVersion": "v1"}
    subject |= {part: about[part] for part in ("namespace", "name", "uid")}
    event = {"metadata": {"name": "complaint"}, "type": "Warning", "reason": "ProvisioningFailed", "message": note}
    made: Any = Event.from_dict(event | {"involvedObject": subject})
    cluster.kube.create(made, namespace=about["namespace"])


def test_a_storage_gets_its_claim_and_becomes_ready(cluster: Cluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    waiting = cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    assert verdict(waiting) == ("Pending", "False", "ClaimPending")
    assert "there is no StorageClass rook-ceph-block: create it" in ready(waiting)["message"]
    assert waiting["metadata"]["finalizers"] == [f"{GROUP}/storage-protection"]
    made = found_claim(cluster, namespace)
    assert made["metadata"]["labels"] == LABELS
    assert "ownerReferences" not in made["metadata"]
    assert made["spec"]["accessModes"] == ["ReadWriteOnce"]
    assert made["spec"]["storageClassName"] == CLASS
    assert made["spec"]["resources"] == {"requests": {"storage": "1Gi"}}
    cluster.volume(namespace, "data")
    done = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert verdict(done) == ("Ready", "True", "StorageReady")
    status = done["status"]
    assert (status["claimName"], status["capacity"]) == ("data", "1Gi")
    assert status["observedGeneration"] == done["metadata"]["generation"]
    assert "mountedBy" not in status
    assert_quiet(cluster, STORAGE, namespace, "data")

    def told() -> list[str]:
        events = [as_dict(each) for each in cluster.kube.list(Event, namespace=namespace)]
        return [each["reason"] for each in events if each["involvedObject"]["kind"] == "GPUStorage"]

    wait_until(lambda: {"ClaimPending", "StorageReady"} <= set(told()), 60, lambda: str(told()))


def test_a_bad_size_is_explained_and_recovers_when_corrected(cluster: Cluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "many"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "InvalidSpec")
    assert verdict(failed) == ("Failed", "False", "InvalidSpec")
    assert "spec.size: 'many' is not a quantity" in ready(failed)["message"]
    assert cluster.gone(CLAIM, namespace, "data")
    cluster.volume(namespace, "data")
    cluster.patch(STORAGE, namespace, "data", {"spec": {"size": "1Gi"}})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")


def test_a_claim_waits_for_its_provisioner_or_for_its_first_unit(cluster: Cluster, namespace: str) -> None:
    cluster.storage_class("immediate")
    cluster.storage_class("on-demand", binding="WaitForFirstConsumer")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": "immediate"})
    waiting = cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    assert "provisioner example.com/nobody of StorageClass immediate" in ready(waiting)["message"]
    complain(cluster, found_claim(cluster, namespace), "rpc error: no such pool")
    cluster.touch(STORAGE, namespace, "data")
    cluster.wait(
        STORAGE, namespace, "data", lambda found: ready(found)["message"].endswith(": rpc error: no such pool")
    )
    cluster.create(STORAGE, namespace, "lazy", {"size": "1Gi", "storageClassName": "on-demand"})
    lazy = cluster.wait_reason(STORAGE, namespace, "lazy", "WaitForFirstConsumer")
    assert verdict(lazy) == ("Pending", "False", "WaitForFirstConsumer")
    cluster.create(UNIT, namespace, "a", SMALL | {"storageMounts": [{"name": "lazy", "mountPath": "/data"}]})
    # Its pod is what the volume waits for; here nobody makes one for it, so it is given one by hand.
    chosen = cluster.wait(STORAGE, namespace, "lazy", lambda found: "for node" in ready(found)["message"])
    assert chosen["status"]["mountedBy"] == "a"
    cluster.volume(namespace, "lazy", storage_class="on-demand")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.wait_reason(STORAGE, namespace, "lazy", "StorageReady")


def test_a_class_that_comes_late_is_noticed(cluster: Cluster, namespace: str) -> None:
    name = f"late-{namespace}"
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": name})
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    cluster.storage_class(name, binding="WaitForFirstConsumer")
    cluster.wait_reason(STORAGE, namespace, "data", "WaitForFirstConsumer")


def test_what_others_change_about_a_claim_comes_back(cluster: Cluster, namespace: str) -> None:
    storage = cluster.storage(namespace, "data")
    fine = found_claim(cluster, namespace)
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
        cluster.patch(CLAIM, namespace, "data", {"metadata": change})
        cluster.wait(
            CLAIM,
            namespace,
            "data",
            lambda found: all(found["metadata"].get(part) == fine["metadata"].get(part) for part in parts),
        )
    cluster.patch(CLAIM, namespace, "data", {"metadata": {"labels": {"example.com/team": "a"}}})
    assert_quiet(cluster, STORAGE, namespace, "data")
    assert found_claim(cluster, namespace)["metadata"]["labels"]["example.com/team"] == "a"


def test_a_storage_grows_where_its_class_allows_it(cluster: Cluster, namespace: str) -> None:
    cluster.storage_class("growing", grows=True)
    cluster.volume(namespace, "data", storage_class="growing")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": "growing"})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    cluster.patch(STORAGE, namespace, "data", {"spec": {"size": "2048Mi"}})
    growing = cluster.wait_reason(STORAGE, namespace, "data", "ResizePending")
    assert verdict(growing) == ("Ready", "False", "ResizePending")
    assert "the volume grows from 1Gi to 2Gi" in ready(growing)["message"]
    assert growing["status"]["capacity"] == "1Gi"
    assert found_claim(cluster, namespace)["spec"]["resources"]["requests"]["storage"] == "2Gi"
    waits = {"type": "FileSystemResizePending", "status": "True", "message": "start a pod to finish"}
    cluster.status(CLAIM, namespace, "data", {"conditions": [waits]})
    cluster.wait(STORAGE, namespace, "data", lambda found: "start a pod to finish" in ready(found)["message"])
    cluster.status(CLAIM, namespace, "data", {"conditions": None, "capacity": {"storage": "2Gi"}})
    grown = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert grown["status"]["capacity"] == "2Gi"
    assert_quiet(cluster, STORAGE, namespace, "data")


def test_growth_that_the_class_or_a_quota_refuses_leaves_the_data_and_says_why(
    cluster: Cluster, namespace: str
) -> None:
    name = f"fixed-{namespace}"
    cluster.storage_class(name)
    cluster.volume(namespace, "data", storage_class=name)
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi", "storageClassName": name})
    cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    cluster.patch(STORAGE, namespace, "data", {"spec": {"size": "2Gi"}})
    refused = cluster.wait_reason(STORAGE, namespace, "data", "ResizeRefused")
    assert verdict(refused) == ("Ready", "False", "ResizeRefused")
    assert f"StorageClass {name} does not allow volumes to grow: set its allowVolumeExpansion" in str(ready(refused))
    assert refused["status"]["capacity"] == "1Gi"
    assert found_claim(cluster, namespace)["spec"]["resources"]["requests"]["storage"] == "1Gi"
    # It can still be mounted.
    cluster.create(UNIT, namespace, "a", SMALL | {"storageMounts": [{"name": "data", "mountPath": "/data"}]})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    quota = ResourceQuota(
        metadata=ObjectMeta(name="little"), spec=ResourceQuotaSpec(hard={"requests.storage": "1536Mi"})
    )
    cluster.kube.create(quota, namespace=namespace)
    cluster.wait(ResourceQuota, namespace, "little", lambda found: "used" in found.get("status", {}))
    cluster.kube.patch(StorageClass, name, {"allowVolumeExpansion": True})
    cluster.wait(STORAGE, namespace, "data", lambda found: "exceeded quota: little" in ready(found)["message"])
    cluster.kube.delete(ResourceQuota, "little", namespace=namespace)
    cluster.touch(STORAGE, namespace, "data")
    cluster.wait_reason(STORAGE, namespace, "data", "ResizePending")


def test_a_claim_of_somebody_else_is_never_touched(cluster: Cluster, namespace: str) -> None:
    cluster.kube.create(claim(namespace, {"app": "stranger"}), namespace=namespace)
    before = found_claim(cluster, namespace)
    cluster.create(STORAGE, namespace, "data", {"size": "2Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "NameTaken")
    assert verdict(failed) == ("Failed", "False", "NameTaken")
    assert "belongs to somebody else: rename one of them" in ready(failed)["message"]
    assert "claimName" not in failed["status"]
    cluster.kube.delete(STORAGE, "data", namespace=namespace)
    wait_until(lambda: cluster.gone(STORAGE, namespace, "data"), 60, lambda: "the storage is still there")
    after = found_claim(cluster, namespace)
    assert "deletionTimestamp" not in after["metadata"]
    assert (after["spec"], after["metadata"]["labels"]) == (before["spec"], before["metadata"]["labels"])


def test_a_claim_with_the_storages_label_is_adopted_with_its_data(cluster: Cluster, namespace: str) -> None:
    """As after a restore, in which objects come back in any order, with other UIDs and without a status."""
    cluster.volume(namespace, "data", size="3Gi")
    cluster.kube.create(claim(namespace, {f"{GROUP}/storage": "data"}, size="3Gi"), namespace=namespace)
    before = cluster.wait(CLAIM, namespace, "data", lambda found: found["status"]["phase"] == "Bound")
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    adopted = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")
    assert adopted["status"]["capacity"] == "3Gi"
    after = found_claim(cluster, namespace)
    assert after["metadata"]["uid"] == before["metadata"]["uid"]
    assert after["metadata"]["labels"] == LABELS
    assert after["metadata"]["annotations"][f"{GROUP}/storage-uid"] == adopted["metadata"]["uid"]
    assert_quiet(cluster, STORAGE, namespace, "data")


def test_an_adopted_claim_of_another_class_is_explained(cluster: Cluster, namespace: str) -> None:
    cluster.kube.create(claim(namespace, LABELS, storage_class="other"), namespace=namespace)
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "ClaimSyncFailed")
    assert "is of class other, and this storage of class rook-ceph-block" in ready(failed)["message"]


def test_a_refused_claim_is_explained(cluster: Cluster, namespace: str) -> None:
    quota = ResourceQuota(
        metadata=ObjectMeta(name="nothing"), spec=ResourceQuotaSpec(hard={"persistentvolumeclaims": "0"})
    )
    cluster.kube.create(quota, namespace=namespace)
    cluster.wait(ResourceQuota, namespace, "nothing", lambda found: "hard" in found.get("status", {}))
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    failed = cluster.wait_reason(STORAGE, namespace, "data", "ClaimSyncFailed")
    assert verdict(failed) == ("Failed", "False", "ClaimSyncFailed")
    assert "PersistentVolumeClaim is refused: " in ready(failed)["message"]
    assert "exceeded quota: nothing" in ready(failed)["message"]
    cluster.kube.delete(ResourceQuota, "nothing", namespace=namespace)
    cluster.touch(STORAGE, namespace, "data")
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")


@pytest.mark.parametrize("lost", ["volume", "claim"])
def test_lost_data_is_said_and_never_replaced_by_nothing(cluster: Cluster, namespace: str, lost: str) -> None:
    cluster.storage(namespace, "data")
    if lost == "volume":
        volume = f"{namespace}-data"
        lose_volume(cluster, volume)
        said = f"PersistentVolume {volume} is gone"
    else:
        cluster.kube.delete(CLAIM, "data", namespace=namespace)
        said = "was deleted by somebody else, and the data with it: restore the claim"
    failed = cluster.wait(STORAGE, namespace, "data", lambda found: said in ready(found)["message"])
    assert verdict(failed) == ("Failed", "False", "ClaimLost")
    cluster.touch(STORAGE, namespace, "data")
    assert cluster.gone(CLAIM, namespace, "data") == (lost == "claim")
    cluster.kube.delete(STORAGE, "data", namespace=namespace)
    wait_until(lambda: cluster.gone(STORAGE, namespace, "data"), 60, lambda: "a lost claim holds the storage")


def lose_volume(cluster: Cluster, name: str) -> None:
    """Kubernetes puts its protection back onto a volume that is not being deleted, so that goes first."""
    cluster.kube.delete(PersistentVolume, name)
    with contextlib.suppress(ApiError):  # it was without protection, and is gone
        cluster.kube.patch(PersistentVolume, name, {"metadata": {"finalizers": None}})


def test_a_claim_that_never_held_data_is_made_again(cluster: Cluster, namespace: str) -> None:
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    cluster.wait_reason(STORAGE, namespace, "data", "ClaimPending")
    first = found_claim(cluster, namespace)
    cluster.kube.delete(CLAIM, "data", namespace=namespace)
    cluster.wait(CLAIM, namespace, "data", lambda found: found["metadata"]["uid"] != first["metadata"]["uid"])


def test_a_status_that_somebody_else_wrote_is_corrected(cluster: Cluster, namespace: str) -> None:
    fine = cluster.storage(namespace, "data")["status"]
    cluster.status(STORAGE, namespace, "data", {"phase": "Failed", "mountedBy": "nobody", "conditions": None})
    corrected = cluster.wait_reason(STORAGE, namespace, "data", "StorageReady")["status"]
    assert (corrected["phase"], corrected.get("mountedBy")) == (fine["phase"], None)
