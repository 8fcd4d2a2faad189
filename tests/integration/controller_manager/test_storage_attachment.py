"""Who holds a storage: given before a pod mounts it, kept as long as one does, and never left with nobody."""

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightkube.generic_resource import create_namespaced_resource
from lightkube.resources.core_v1 import Pod

from gpu_runtime.contract.crd.well_known import operation_name
from localcluster.supervisor_client import wait_until
from tests.integration.controller_manager.conftest import GROUP, STORAGE, UNIT, Cluster, Object, as_dict, ready

OPERATION = create_namespaced_resource(GROUP, "v1alpha1", "Operation", "operations")
SMALL = {"specName": "g1.1", "image": "python", "memory": "1Mi"}
MOUNTING = SMALL | {"storageMounts": [{"name": "data", "mountPath": "/data"}]}


def holder(cluster: Cluster, namespace: str) -> Object | None:
    """Who holds it, and for which operation."""
    found = cluster.get(STORAGE, namespace, "data")
    held = found["spec"].get("attachedTo") if found else None
    return {name: value for name, value in held.items() if name != "attempt"} if held else None


def wait_holder(cluster: Cluster, namespace: str, unit: str | None, timeout: float = 60) -> None:
    def is_so() -> bool:
        found = cluster.get(STORAGE, namespace, "data")
        assert found
        told = found["spec"].get("attachedTo", {}).get("unit"), found.get("status", {}).get("mountedBy")
        return told == (unit, unit)

    wait_until(is_so, timeout, lambda: f"{cluster.get(STORAGE, namespace, 'data')} is not held by {unit}")


def pods(cluster: Cluster, namespace: str, unit: str) -> list[Object]:
    return [as_dict(each) for each in cluster.kube.list(Pod, namespace=namespace, labels={f"{GROUP}/unit": unit})]


def hold_pod(cluster: Cluster, namespace: str, unit: str) -> Callable[[], None]:
    """Keep the pod of a unit from going away; what is given lets it go."""
    (name,) = [pod["metadata"]["name"] for pod in pods(cluster, namespace, unit)]
    cluster.patch(Pod, namespace, name, {"metadata": {"finalizers": ["example.com/slow"]}})
    return lambda: cluster.patch(Pod, namespace, name, {"metadata": {"finalizers": None}})


def operation(cluster: Cluster, operation_id: str, namespace: str, state: str) -> None:
    """The record of an operation that makes the unit `web`."""
    name = operation_name(operation_id)
    spec = {
        "operationID": operation_id,
        "type": "CreateUnit",
        "requestHash": "0" * 64,
        "target": {"kind": "GPUUnit", "namespace": namespace, "name": "web"},
    }
    if cluster.get(OPERATION, "runtime-system", name) is None:
        cluster.create(OPERATION, "runtime-system", name, spec)
    cluster.status(OPERATION, "runtime-system", name, {"state": state})


def attach(cluster: Cluster, namespace: str, operation_id: str) -> None:
    cluster.patch(STORAGE, namespace, "data", {"spec": {"attachedTo": {"unit": "web", "operationID": operation_id}}})


def made_by(operation_id: str) -> Any:
    return {f"{GROUP}/operation-id": operation_id}


def test_units_made_with_kubectl_get_their_storage_one_after_the_other(
    cluster: Cluster, collecting: None, namespace: str
) -> None:
    cluster.storage(namespace, "data")
    cluster.create(UNIT, namespace, "first", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "first", "UnitReady")
    wait_holder(cluster, namespace, "first")
    (pod,) = pods(cluster, namespace, "first")
    assert pod["spec"]["volumes"] == [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    cluster.create(UNIT, namespace, "second", MOUNTING)
    refused = cluster.wait_reason(UNIT, namespace, "second", "StorageMountInvalid")
    assert ready(refused)["message"] == "GPUStorage data is attached to unit first"
    assert refused["status"]["phase"] == "Failed"
    let_go = hold_pod(cluster, namespace, "first")
    cluster.kube.delete(UNIT, "first", namespace=namespace)
    wait_until(
        lambda: "deletionTimestamp" in pods(cluster, namespace, "first")[0]["metadata"], 60, lambda: "the pod stays"
    )
    cluster.touch(STORAGE, namespace, "data")
    assert holder(cluster, namespace) == {"unit": "first"}, "its pod is only on its way out"
    let_go()
    cluster.wait_reason(UNIT, namespace, "second", "UnitReady")
    wait_holder(cluster, namespace, "second")


def kubectl_create(cluster: Cluster, folder: Path, namespace: str, name: str, spec: Object) -> "threading.Thread":
    about = {"apiVersion": f"{GROUP}/v1alpha1", "kind": "GPUUnit", "metadata": {"name": name, "namespace": namespace}}
    path = folder / f"{name}.json"
    path.write_text(json.dumps(about | {"spec": spec}))
    return threading.Thread(target=cluster.plane.kubectl, args=("create", "-f", str(path)))


def test_of_two_units_that_race_for_two_storages_one_gets_both(
    cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    for name in ("data", "more"):
        cluster.storage(namespace, name)
    mounts = [{"name": "data", "mountPath": "/data"}, {"name": "more", "mountPath": "/more"}]
    specs = {"right": SMALL | {"storageMounts": mounts}, "left": SMALL | {"storageMounts": mounts[::-1]}}
    names = list(specs)
    racers = [kubectl_create(cluster, tmp_path, namespace, name, spec) for name, spec in specs.items()]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()

    def reasons() -> list[str]:
        return sorted(ready(cluster.get(UNIT, namespace, name) or {}).get("reason", "") for name in names)

    wait_until(lambda: reasons() == ["StorageMountInvalid", "UnitReady"], 60, lambda: str(reasons()))
    assert sum(len(pods(cluster, namespace, name)) for name in names) == 1


def test_an_attachment_waits_for_its_unit_as_long_as_the_operation_may_still_make_it(
    cluster: Cluster, namespace: str
) -> None:
    cluster.storage(namespace, "data")
    operation(cluster, f"{namespace}-failing", namespace, "Running")
    attach(cluster, namespace, f"{namespace}-failing")
    wait_holder(cluster, namespace, "web")
    cluster.create(UNIT, namespace, "other", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "other", "StorageMountInvalid")
    for _ in range(3):
        cluster.touch(STORAGE, namespace, "data")
    assert holder(cluster, namespace) == {"unit": "web", "operationID": f"{namespace}-failing"}
    operation(cluster, f"{namespace}-failing", namespace, "Failed")
    cluster.wait_reason(UNIT, namespace, "other", "UnitReady")
    wait_holder(cluster, namespace, "other")


def test_an_attachment_of_an_operation_that_nobody_knows_is_released(cluster: Cluster, namespace: str) -> None:
    cluster.storage(namespace, "data")
    attach(cluster, namespace, "forgotten")
    wait_holder(cluster, namespace, None)


def test_the_release_for_a_unit_never_hits_the_next_one_of_its_name(
    cluster: Cluster, collecting: None, namespace: str
) -> None:
    first, second = f"{namespace}-1", f"{namespace}-2"
    cluster.storage(namespace, "data")
    operation(cluster, first, namespace, "Running")
    attach(cluster, namespace, first)
    cluster.create(UNIT, namespace, "web", MOUNTING, annotations=made_by(first))
    operation(cluster, first, namespace, "Succeeded")
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    let_go = hold_pod(cluster, namespace, "web")
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    operation(cluster, second, namespace, "Running")
    attach(cluster, namespace, second)
    cluster.create(UNIT, namespace, "web", MOUNTING, annotations=made_by(second))
    waiting = cluster.wait(UNIT, namespace, "web", lambda found: "still mounted by pod" in str(ready(found)))
    assert ready(waiting)["reason"] == "StorageNotReady"
    assert waiting["status"]["phase"] == "Progressing"
    assert len(pods(cluster, namespace, "web")) == 1, "two pods never mount one storage"
    let_go()
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    operation(cluster, second, namespace, "Succeeded")
    cluster.touch(STORAGE, namespace, "data")
    assert holder(cluster, namespace) == {"unit": "web", "operationID": second}
    cluster.kube.delete(UNIT, "web", namespace=namespace)
    wait_holder(cluster, namespace, None)


def test_a_mount_that_an_update_drops_is_released_after_the_old_pod(cluster: Cluster, namespace: str) -> None:
    cluster.storage(namespace, "data")
    cluster.create(UNIT, namespace, "a", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    let_go = hold_pod(cluster, namespace, "a")
    cluster.patch(UNIT, namespace, "a", {"spec": {"storageMounts": None}})
    wait_until(lambda: "deletionTimestamp" in pods(cluster, namespace, "a")[0]["metadata"], 60, lambda: "the pod stays")
    cluster.touch(STORAGE, namespace, "data")
    assert holder(cluster, namespace) == {"unit": "a"}
    let_go()
    wait_holder(cluster, namespace, None)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    (pod,) = pods(cluster, namespace, "a")
    assert "volumes" not in pod["spec"]


def test_a_unit_that_gains_a_mount_runs_on_until_the_storage_is_there(cluster: Cluster, namespace: str) -> None:
    cluster.create(UNIT, namespace, "a", SMALL)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    before = pods(cluster, namespace, "a")[0]["metadata"]["uid"]
    cluster.create(STORAGE, namespace, "data", {"size": "1Gi"})
    cluster.patch(UNIT, namespace, "a", {"spec": {"storageMounts": MOUNTING["storageMounts"]}})
    waiting = cluster.wait(UNIT, namespace, "a", lambda found: "there is no StorageClass" in str(ready(found)))
    assert (ready(waiting)["reason"], waiting["status"]["readyReplicas"]) == ("StorageNotReady", 1)
    assert [pod["metadata"]["uid"] for pod in pods(cluster, namespace, "a")] == [before]
    cluster.volume(namespace, "data")
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    (pod,) = pods(cluster, namespace, "a")
    assert pod["spec"]["volumes"][0]["persistentVolumeClaim"] == {"claimName": "data"}


def test_a_stopped_unit_keeps_its_storage(cluster: Cluster, namespace: str) -> None:
    cluster.storage(namespace, "data")
    cluster.create(UNIT, namespace, "a", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    cluster.patch(UNIT, namespace, "a", {"spec": {"running": False}})
    cluster.wait_reason(UNIT, namespace, "a", "ScaledToZero")
    cluster.create(UNIT, namespace, "b", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "b", "StorageMountInvalid")
    cluster.patch(UNIT, namespace, "a", {"spec": {"running": True}})
    cluster.wait_reason(UNIT, namespace, "a", "UnitReady")
    assert holder(cluster, namespace) == {"unit": "a"}


def test_an_update_may_attach_a_storage_before_the_unit_names_it(cluster: Cluster, namespace: str) -> None:
    """And whoever attached it and then died leaves it to nobody."""
    cluster.storage(namespace, "data")
    cluster.create(UNIT, namespace, "web", SMALL)
    cluster.wait_reason(UNIT, namespace, "web", "UnitReady")
    cluster.patch(STORAGE, namespace, "data", {"spec": {"attachedTo": {"unit": "web"}}})
    wait_holder(cluster, namespace, "web")
    cluster.touch(STORAGE, namespace, "data")
    assert holder(cluster, namespace) == {"unit": "web"}
    wait_holder(cluster, namespace, None)


def test_a_unit_that_cannot_have_one_of_its_storages_keeps_no_later_one_from_others(
    cluster: Cluster, namespace: str
) -> None:
    """Else two units could each hold what the other waits for."""
    for name in ("data", "more"):
        cluster.storage(namespace, name)
    cluster.create(UNIT, namespace, "first", MOUNTING)
    cluster.wait_reason(UNIT, namespace, "first", "UnitReady")
    later = {"name": "more", "mountPath": "/more"}
    cluster.create(UNIT, namespace, "waiting", SMALL | {"storageMounts": [later, *MOUNTING["storageMounts"]]})
    refused = cluster.wait_reason(UNIT, namespace, "waiting", "StorageMountInvalid")
    assert ready(refused)["message"] == "GPUStorage data is attached to unit first"
    cluster.touch(STORAGE, namespace, "more")
    found = cluster.get(STORAGE, namespace, "more")
    assert found
    assert "attachedTo" not in found["spec"]
    cluster.create(UNIT, namespace, "last", SMALL | {"storageMounts": [later]})
    cluster.wait_reason(UNIT, namespace, "last", "UnitReady")
