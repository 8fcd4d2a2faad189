"""Steps of the attachment and of the deletion of a storage, and the references to PVCs that they depend on."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_storage import Attachment
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_storage.attachment import (
    AttachStorage,
    CheckOperation,
    DetachStorage,
    KeepAttachment,
    RecheckAttachment,
    next_attachment_step,
)
from gpu_runtime.controller_manager.gpu_storage.finalize import next_finalize_step
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import GPUStorageMappers
from gpu_runtime.controller_manager.gpu_storage.observe import may_mount
from gpu_runtime.controller_manager.indexes import (
    STORAGES_BY_CLASS,
    STORAGES_BY_UNIT,
    attached_unit_keys,
    pvc_index_keys,
    storage_classes,
)
from gpu_runtime.controller_manager.unstructured import RawDeployment
from gpu_runtime.controller_manager.volume_refs import deployment_pvc_keys
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.store import Store
from tests.unit.controller_manager.controller_objects import make_storage, metadata, observed_storage, pod, pvc, unit

MOUNTS = [{"name": "data", "mountPath": "/data"}]
ATTACHED = {"unit": "web"}
BY_OPERATION = {"unit": "web", "operationID": "op-1", "operationUID": "uid-1"}
OLD = {"mountedBy": "web", "lastSyncTime": "2026-01-01T11:59:57Z"}
FRESH = {"mountedBy": "web", "lastSyncTime": "2026-01-01T11:59:58Z"}
FAR_AHEAD = {"mountedBy": "web", "lastSyncTime": "9999-12-31T23:59:59Z"}
OLD_OF_OTHER_UNIT = OLD | {"mountedBy": "b"}
MOUNTING_UNIT = unit(storageMounts=MOUNTS)
STOPPED_UNIT = unit(storageMounts=MOUNTS, running=False)
UNIT_WITHOUT_MOUNT = unit()
UNIT_OF_OPERATION = unit(annotations={Annotation.OPERATION_ID: "op-1", Annotation.OPERATION_UID: "uid-1"})
UNIT_OF_OTHER_OPERATION = unit(annotations={Annotation.OPERATION_ID: "op-1", Annotation.OPERATION_UID: "uid-0"})
CHECK_OPERATION = CheckOperation(Attachment(unit="web", operation_id="op-1", operation_uid="uid-1"))


@pytest.mark.parametrize(
    ("attached", "status", "fields", "step"),
    [
        (None, {}, {}, KeepAttachment()),
        (None, {}, {"attach_candidates": (MOUNTING_UNIT,)}, AttachStorage("web")),
        (ATTACHED, OLD, {"attached_unit": MOUNTING_UNIT}, KeepAttachment()),
        (ATTACHED, OLD, {"attached_unit": STOPPED_UNIT}, KeepAttachment()),
        (ATTACHED, OLD, {"attached_unit": UNIT_WITHOUT_MOUNT}, DetachStorage("web")),
        (ATTACHED, OLD, {}, DetachStorage("web")),
        (ATTACHED, OLD, {"mounted_by": ("Pod p",)}, KeepAttachment()),
        (ATTACHED, OLD, {"attached_unit": UNIT_WITHOUT_MOUNT, "mounted_by": ("Deployment web",)}, KeepAttachment()),
        (ATTACHED, OLD, {"pod_cache_error": "forbidden"}, RecheckAttachment(1.0)),
        (ATTACHED, FRESH, {"attached_unit": UNIT_WITHOUT_MOUNT}, RecheckAttachment(3.0)),
        (ATTACHED, FAR_AHEAD, {"attached_unit": UNIT_WITHOUT_MOUNT}, DetachStorage("web")),
        (ATTACHED, {}, {"attached_unit": UNIT_WITHOUT_MOUNT}, RecheckAttachment(3.0)),
        (ATTACHED, OLD_OF_OTHER_UNIT, {"attached_unit": UNIT_WITHOUT_MOUNT}, RecheckAttachment(3.0)),
        (ATTACHED, FRESH, {}, DetachStorage("web")),
        (ATTACHED, {}, {}, DetachStorage("web")),
        (BY_OPERATION, OLD, {}, CHECK_OPERATION),
        (BY_OPERATION, {}, {}, CHECK_OPERATION),
        (BY_OPERATION, OLD, {"attached_unit": UNIT_OF_OTHER_OPERATION}, CHECK_OPERATION),
        (BY_OPERATION, OLD, {"attached_unit": UNIT_OF_OPERATION}, DetachStorage("web")),
        (BY_OPERATION, FRESH, {"attached_unit": UNIT_OF_OPERATION}, RecheckAttachment(3.0)),
        (BY_OPERATION, OLD, {"attached_unit": MOUNTING_UNIT}, KeepAttachment()),
        (BY_OPERATION, OLD, {"mounted_by": ("Pod p",)}, KeepAttachment()),
    ],
)
def test_next_step_of_an_attachment(attached: Any, status: Any, fields: Any, step: Any) -> None:
    assert next_attachment_step(observed_storage(make_storage(attached, status), **fields)) == step


TERMINATING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
FOREIGN_PVC = pvc(labels={}, annotations={})
TERMINATING_PVC = pvc(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["kubernetes.io/pvc-protection"])


@pytest.mark.parametrize(
    ("attached", "fields", "waiting_for", "deletes"),
    [
        (None, {}, "", False),
        (None, {"pvc": FOREIGN_PVC}, "", False),
        (None, {"pvc": pvc()}, "the deletion of PersistentVolumeClaim data", True),
        (
            None,
            {"pvc": TERMINATING_PVC},
            "data, which has finalizers kubernetes.io/pvc-protection: delete the pods that mount the PVC",
            False,
        ),
        (None, {"pvc": pvc(phase="Lost")}, "the deletion of PersistentVolumeClaim data", True),
        (None, {"pvc": pvc(), "mounted_by": ("Pod p",)}, "Pod p: delete the unit", False),
        (None, {"pvc": pvc(), "pod_cache_error": "forbidden"}, "forbidden", False),
        (
            ATTACHED,
            {"pvc": pvc(), "attached_unit": MOUNTING_UNIT},
            "GPUUnit web: delete the unit, or remove the storage from spec.storageMounts of the unit",
            False,
        ),
        (ATTACHED, {"pvc": pvc(), "attached_unit": STOPPED_UNIT}, "GPUUnit web", False),
        (ATTACHED, {"pvc": pvc(), "attached_unit": UNIT_WITHOUT_MOUNT}, "the deletion of PersistentVolumeClaim", True),
        (ATTACHED, {"pvc": pvc()}, "the deletion of PersistentVolumeClaim", True),
        (BY_OPERATION, {"pvc": pvc()}, "the deletion of PersistentVolumeClaim", True),
        (BY_OPERATION, {}, "", False),
    ],
)
def test_finalizer_waits_for_mounting_pods_and_then_for_the_pvc(
    attached: Any, fields: Any, waiting_for: str, deletes: bool
) -> None:
    step = next_finalize_step(observed_storage(make_storage(attached, **TERMINATING), **fields))
    assert waiting_for in step.waiting_for
    assert bool(step.waiting_for) is bool(waiting_for)
    assert (step.pvc_to_delete is not None) is deletes


@pytest.mark.parametrize(
    ("phase", "deleted", "mounted"),
    [
        ("Pending", None, True),
        ("Running", None, True),
        ("Failed", None, False),
        ("Succeeded", "2026-01-01T00:00:30Z", True),
    ],
)
def test_pod_references_its_pvcs_until_it_terminates(phase: str, deleted: str | None, mounted: bool) -> None:
    keys = pvc_index_keys(pod(claims=["data", "more"], deleted=deleted, phase=phase))
    assert keys == (("runtime-instance/data", "runtime-instance/more") if mounted else ())


def test_deployment_references_the_pvcs_of_its_pods() -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}]
    deployment = msgspec.convert(
        {"metadata": metadata("web"), "spec": {"template": {"spec": {"volumes": volumes}}}}, RawDeployment
    )
    assert deployment_pvc_keys(deployment) == {ObjectKey("runtime-instance", "data")}
    assert deployment_pvc_keys(msgspec.structs.replace(deployment, spec={})) == set()


@pytest.mark.parametrize(
    ("volume", "replicas", "generation_observed", "mounts"),
    [
        ("data", 1, True, True),
        ("data", 0, True, False),
        ("other", 1, True, False),
        ("other", 1, False, True),
        ("data", 0, False, True),
    ],
)
def test_unobserved_deployment_still_references_its_previous_pvcs(
    volume: str, replicas: int, generation_observed: bool, mounts: bool
) -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": volume}}]
    deployment = {
        "metadata": metadata("web") | {"generation": 2},
        "spec": {"replicas": replicas, "template": {"spec": {"volumes": volumes}}},
        "status": {"observedGeneration": 2 if generation_observed else 1},
    }
    assert may_mount(msgspec.convert(deployment, RawDeployment), ObjectKey("runtime-instance", "data")) is mounts


def test_events_enqueue_mounted_and_attached_storages() -> None:
    store: Store[Any] = Store()
    store.add_index(STORAGES_BY_UNIT, attached_unit_keys)
    store.add_index(STORAGES_BY_CLASS, storage_classes)
    store.put(make_storage(ATTACHED))
    web, units = unit(storageMounts=[{"name": "more", "mountPath": "/more"}]), Store[Any]()
    units.put(web)
    mappers, data = GPUStorageMappers(store, units), ObjectKey("runtime-instance", "data")
    assert list(mappers.map_storage(make_storage(ATTACHED))) == [ObjectKey("runtime-instance", "more")]
    assert list(mappers.map_storage(make_storage())) == []
    assert list(mappers.map_unit(web)) == [ObjectKey("runtime-instance", "more"), data]
    assert list(mappers.map_pod(pod(claims=["x"], phase="Failed"))) == [ObjectKey("runtime-instance", "x")]
    assert list(mappers.map_deployment(msgspec.convert({"metadata": metadata("web")}, RawDeployment))) == [data]
    assert list(mappers.map_pvc(pvc())) == [data]
