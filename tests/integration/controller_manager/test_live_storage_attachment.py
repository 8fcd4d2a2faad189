"""Attachment of storages: attached before a pod mounts it, kept while a pod mounts it, and released afterwards."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

from gpu_runtime.contract.crd.well_known import operation_name
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import (
    GROUP,
    STORAGE,
    UNIT,
    ControllerCluster,
    Object,
    as_dict,
    ready_condition,
)

OPERATION = create_namespaced_resource(GROUP, "v1alpha1", "Operation", "operations")
SMALL = {"specName": "g1.1", "image": "python", "memory": "1Mi"}
MOUNTING = SMALL | {"storageMounts": [{"name": "data", "mountPath": "/data"}]}
ATTACHED_TO_FIRST = (
    "GPUStorage data is attached to unit first: delete that unit, or remove the storage from spec.storageMounts of that"
    " unit"
)


def attached_to(cluster: ControllerCluster, namespace: str) -> Object | None:
    """Return the attachment of the storage: the unit and the operation."""
    found = cluster.get(STORAGE, namespace, "data")
    attachment = found["spec"].get("attachedTo") if found else None
    return {name: value for name, value in attachment.items() if name != "attempt"} if attachment else None


def wait_attached_to(cluster: ControllerCluster, namespace: str, unit: str | None, timeout: float = 60) -> None:
    def is_attached() -> bool:
        found = cluster.get(STORAGE, namespace, "data")
        assert found
        units = found["spec"].get("attachedTo", {}).get("unit"), found.get("status", {}).get("mountedBy")
        return units == (unit, unit)

    wait_until(is_attached, timeout, lambda: f"{cluster.get(STORAGE, namespace, 'data')} is not attached to {unit}")


def pods(cluster: ControllerCluster, namespace: str, unit: str) -> list[Object]:
    return [as_dict(each) for each in cluster.kube.list(Pod, namespace=namespace, labels={f"{GROUP}/unit": unit})]


def block_pod_deletion(cluster: ControllerCluster, namespace: str, unit: str) -> Callable[[], None]:
    """Block the deletion of a unit's pod with a finalizer. Return a function that removes the finalizer."""
    (name,) = [pod["metadata"]["name"] for pod in pods(cluster, namespace, unit)]
    cluster.merge_patch(Pod, namespace, name, {"metadata": {"finalizers": ["example.com/slow"]}})
    return lambda: cluster.merge_patch(Pod, namespace, name, {"metadata": {"finalizers": None}})


def record_operation(cluster: ControllerCluster, operation_id: str, namespace: str, state: str) -> str:
    """Write the record of an operation that creates the unit `web`. Return its UID."""
    name = operation_name(operation_id)
    spec = {
        "operationID": operation_id,
        "type": "CreateUnit",
        "requestHash": "0" * 64,
        "target": {"kind": "GPUUnit", "namespace": namespace, "name": "web"},
    }
    if cluster.get(OPERATION, "runtime-system", name) is None:
        cluster.create(OPERATION, "runtime-system", name, spec)
    stock = {"namespace": "runtime-stock", "name": "stock-0", "uid": "stock-uid"}
    cluster.patch_status(OPERATION, "runtime-system", name, {"state": state, "attempt": 1, "stock": stock})
    return str((cluster.get(OPERATION, "runtime-system", name) or {})["metadata"]["uid"])


def attach_storage(cluster: ControllerCluster, namespace: str, operation_id: str, operation_uid: str) -> None:
    attachment = {"unit": "web", "operationID": operation_id, "operationUID": operation_uid, "attempt": 1}
    cluster.merge_patch(STORAGE, namespace, "data", {"spec": {"attachedTo": attachment}})


def operation_annotations(operation_id: str, operation_uid: str) -> Any:
    return {f"{GROUP}/operation-id": operation_id, f"{GROUP}/operation-uid": operation_uid}


def test_units_created_with_kubectl_attach_a_storage_one_after_another(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str
) -> None:
    cluster.create_ready_storage(namespace, "data")
    cluster.create(UNIT, namespace, "first", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "first", "UnitReady")
    wait_attached_to(cluster, namespace, "first")
    (pod,) = pods(cluster, namespace, "first")
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster.create(UNIT, namespace, "second", MOUNTING)
    blocked = cluster.wait_reason(UNIT, namespace, "second", "StorageMountInvalid")
    assert ready_condition(blocked)["message"] == ATTACHED_TO_FIRST
    assert blocked["status"]["phase"] == "Failed"
    unblock_deletion = block_pod_deletion(cluster, namespace, "first")
    cluster.kube.delete(UNIT, "first", namespace=namespace)
    wait_until(
        lambda: "deletionTimestamp" in pods(cluster, namespace, "first")[0]["metadata"],
        60,
        lambda: "the pod is not being deleted",
    )
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert attached_to(cluster, namespace) == {"unit": "first"}, "its pod is still terminating"
    unblock_deletion()
    cluster.wait_reason(UNIT, namespace, "second", "UnitReady")
    wait_attached_to(cluster, namespace, "second")


def kubectl_create(
    cluster: ControllerCluster, folder: Path, namespace: str, name: str, spec: Object
) -> "threading.Thread":
    manifest = {
        "apiVersion": f"{GROUP}/v1alpha1",
        "kind": "GPUUnit",
        "metadata": {"name": name, "namespace": namespace},
    }
    path = folder / f"{name}.json"
    path.write_text(json.dumps(manifest | {"spec": spec}))
    return threading.Thread(target=cluster.control_plane.kubectl, args=("create", "-f", str(path)))


def test_one_of_two_racing_units_attaches_both_storages(
    cluster: ControllerCluster, namespace: str, tmp_path: Path
) -> None:
    for name in ("data", "more"):
        cluster.create_ready_storage(namespace, name)
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "more", "mountPath": "/more"}]
    specs = {"right": SMALL | {"storageMounts": mounts}, "left": SMALL | {"storageMounts": mounts[::-1]}}
    names = list(specs)
    racers = [kubectl_create(cluster, tmp_path, namespace, name, spec) for name, spec in specs.items()]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    def reasons() -> list[str]:
        return sorted(ready_condition(cluster.get(UNIT, namespace, name) or {}).get("reason", "") for name in names)

    wait_until(lambda: reasons() == ["StorageMountInvalid", "UnitReady"], 60, lambda: str(reasons()))
    assert sum(len(pods(cluster, namespace, name)) for name in names) == 1


def test_attachment_of_an_unfinished_operation_is_not_released(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    uid = record_operation(cluster, f"{namespace}-failing", namespace, "Running")
    attach_storage(cluster, namespace, f"{namespace}-failing", uid)
    wait_attached_to(cluster, namespace, "web")
    cluster.create(UNIT, namespace, "other", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "other", "StorageMountInvalid")
    for _ in range(3):
        cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert attached_to(cluster, namespace) == {
        "unit": "web",
        "operationID": f"{namespace}-failing",
        "operationUID": uid,
    }
    record_operation(cluster, f"{namespace}-failing", namespace, "Failed")
    cluster.wait_reason(UNIT, namespace, "other", "UnitReady")
    wait_attached_to(cluster, namespace, "other")


def test_attachment_of_an_unknown_operation_is_released(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    attach_storage(cluster, namespace, "unknown", "unknown-uid")
    wait_attached_to(cluster, namespace, None)


def test_release_of_a_unit_does_not_affect_its_successor(
    cluster: ControllerCluster, garbage_collector_ready: None, namespace: str
) -> None:
    first, second = f"{namespace}-1", f"{namespace}-2"
    cluster.create_ready_storage(namespace, "data")
    first_uid = record_operation(cluster, first, namespace, "Running")
    attach_storage(cluster, namespace, first, first_uid)
    cluster.create(UNIT, namespace, "web", MOUNTING, annotations=operation_annotations(first, first_uid))
    record_operation(cluster, first, namespace, "Succeeded")
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    unblock_deletion = block_pod_deletion(cluster, namespace, "web")
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    second_uid = record_operation(cluster, second, namespace, "Running")
    attach_storage(cluster, namespace, second, second_uid)
    cluster.create(UNIT, namespace, "web", MOUNTING, annotations=operation_annotations(second, second_uid))
    waiting = cluster.wait_for(
        UNIT, namespace, "web", lambda found: "still mounted by pod" in str(ready_condition(found))
    )
    assert ready_condition(waiting)["reason"] == "StorageNotReady"
    assert waiting["status"]["phase"] == "Progressing"
    assert len(pods(cluster, namespace, "web")) == 1, "two pods never mount one storage"
    unblock_deletion()
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    record_operation(cluster, second, namespace, "Succeeded")
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert attached_to(cluster, namespace) == {"unit": "web", "operationID": second, "operationUID": second_uid}
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    wait_attached_to(cluster, namespace, None)


def test_dropped_mount_is_released_after_the_old_pod_terminated(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    cluster.create(UNIT, namespace, "a", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    unblock_deletion = block_pod_deletion(cluster, namespace, "a")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"storageMounts": None}})
    wait_until(
        lambda: "deletionTimestamp" in pods(cluster, namespace, "a")[0]["metadata"],
        60,
        lambda: "the pod is not being deleted",
    )
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert attached_to(cluster, namespace) == {"unit": "a"}
    unblock_deletion()
    wait_attached_to(cluster, namespace, None)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    (pod,) = pods(cluster, namespace, "a")
    assert "volumes" not in pod["spec"]


def test_unit_with_a_new_mount_runs_until_the_storage_is_ready(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    before = pods(cluster, namespace, "a")[0]["metadata"]["uid"]
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"storageMounts": MOUNTING["storageMounts"]}})
    waiting = cluster.wait_for(
        UNIT, namespace, "a", lambda found: "StorageClass rook-ceph-block does not exist" in str(ready_condition(found))
    )
    assert (ready_condition(waiting)["reason"], waiting["status"]["readyReplicas"]) == ("StorageNotReady", 1)
    assert [pod["metadata"]["uid"] for pod in pods(cluster, namespace, "a")] == [before]
    cluster.create_volume(namespace, "data")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    (pod,) = pods(cluster, namespace, "a")
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}


def test_stopped_unit_keeps_its_storage(cluster: ControllerCluster, namespace: str) -> None:
    cluster.create_ready_storage(namespace, "data")
    cluster.create(UNIT, namespace, "a", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"running": False}})
    cluster.wait_reason(UNIT, namespace, "a", "ScaledToZero")
    cluster.create(UNIT, namespace, "b", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "b", "StorageMountInvalid")
    cluster.merge_patch(UNIT, namespace, "a", {"spec": {"running": True}})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    assert attached_to(cluster, namespace) == {"unit": "a"}


def test_storage_may_be_attached_before_the_unit_mounts_it(cluster: ControllerCluster, namespace: str) -> None:
    """If the client that attached the storage crashes before it changes the unit, the storage is released."""
    cluster.create_ready_storage(namespace, "data")
    cluster.create(UNIT, namespace, "web", SMALL)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.merge_patch(STORAGE, namespace, "data", {"spec": {"attachedTo": {"unit": "web"}}})
    wait_attached_to(cluster, namespace, "web")
    cluster.trigger_reconcile(STORAGE, namespace, "data")
    assert attached_to(cluster, namespace) == {"unit": "web"}
    wait_attached_to(cluster, namespace, None)


def test_blocked_unit_does_not_attach_its_other_storages(cluster: ControllerCluster, namespace: str) -> None:
    """Otherwise each of two units could hold a storage that the other one waits for."""
    for name in ("data", "more"):
        cluster.create_ready_storage(namespace, name)
    cluster.create(UNIT, namespace, "first", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "first", "UnitReady")
    later = {"name": "more", "mountPath": "/more"}
    cluster.create(UNIT, namespace, "waiting", SMALL | {"storageMounts": [later, *MOUNTING["storageMounts"]]})
    blocked = cluster.wait_reason(UNIT, namespace, "waiting", "StorageMountInvalid")
    assert ready_condition(blocked)["message"] == ATTACHED_TO_FIRST
    cluster.trigger_reconcile(STORAGE, namespace, "more")
    found = cluster.get(STORAGE, namespace, "more")
    assert found
    assert "attachedTo" not in found["spec"]
    cluster.create(UNIT, namespace, "last", SMALL | {"storageMounts": [later]})
    cluster.wait_reason(UNIT, namespace, "last", "UnitReady")
