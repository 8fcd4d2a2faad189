"""Who holds a storage, and what its end waits for: each decision from what was seen."""

from typing import Any

import msgspec
import pytest

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
from gpu_runtime.controller_manager.volume_refs import deployment_pvc_keys
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.kube.store import Store
from tests.unit.controller_manager.controller_objects import make_storage, metadata, observed_storage, pod, pvc, unit

MOUNTS = [{"name": "data", "mountPath": "/data"}]
HELD = {"unit": "web"}
BY_OPERATION = {"unit": "web", "operationID": "op-1"}
OLD = {"mountedBy": "web", "lastSyncTime": "2026-01-01T11:59:57Z"}
FRESH = {"mountedBy": "web", "lastSyncTime": "2026-01-01T11:59:58Z"}
FAR_AHEAD = {"mountedBy": "web", "lastSyncTime": "9999-12-31T23:59:59Z"}
OF_ANOTHER = OLD | {"mountedBy": "b"}
MOUNTING = unit(storageMounts=MOUNTS)
STOPPED = unit(storageMounts=MOUNTS, running=False)
DROPPED = unit()
UNIT_OF_OPERATION = unit(annotations={Annotation.OPERATION_ID: "op-1"})
UNIT_OF_OTHER_OPERATION = unit(annotations={Annotation.OPERATION_ID: "op-0"})
CHECK_OPERATION = CheckOperation("op-1", "web")


@pytest.mark.parametrize(
    ("attached", "status", "more", "step"),
    [
        (None, {}, {}, KeepAttachment()),
        (None, {}, {"claimants": (MOUNTING,)}, AttachStorage("web")),
        (HELD, OLD, {"holder": MOUNTING}, KeepAttachment()),
        (HELD, OLD, {"holder": STOPPED}, KeepAttachment()),
        (HELD, OLD, {"holder": DROPPED}, DetachStorage("web")),
        (HELD, OLD, {}, DetachStorage("web")),
        (HELD, OLD, {"mounted_in": ("Pod p",)}, KeepAttachment()),
        (HELD, OLD, {"holder": DROPPED, "mounted_in": ("Deployment web",)}, KeepAttachment()),
        (HELD, OLD, {"pods_trouble": "forbidden"}, RecheckAttachment(1.0)),
        (HELD, FRESH, {"holder": DROPPED}, RecheckAttachment(3.0)),
        (HELD, FAR_AHEAD, {"holder": DROPPED}, DetachStorage("web")),
        (HELD, {}, {"holder": DROPPED}, RecheckAttachment(3.0)),
        (HELD, OF_ANOTHER, {"holder": DROPPED}, RecheckAttachment(3.0)),
        (HELD, FRESH, {}, DetachStorage("web")),
        (HELD, {}, {}, DetachStorage("web")),
        (BY_OPERATION, OLD, {}, CHECK_OPERATION),
        (BY_OPERATION, {}, {}, CHECK_OPERATION),
        (BY_OPERATION, OLD, {"holder": UNIT_OF_OTHER_OPERATION}, CHECK_OPERATION),
        (BY_OPERATION, OLD, {"holder": UNIT_OF_OPERATION}, DetachStorage("web")),
        (BY_OPERATION, FRESH, {"holder": UNIT_OF_OPERATION}, RecheckAttachment(3.0)),
        (BY_OPERATION, OLD, {"holder": MOUNTING}, KeepAttachment()),
        (BY_OPERATION, OLD, {"mounted_in": ("Pod p",)}, KeepAttachment()),
    ],
)
def test_the_next_step_of_an_attachment(attached: Any, status: Any, more: Any, step: Any) -> None:
    assert next_attachment_step(observed_storage(make_storage(attached, status), **more)) == step


TERMINATING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
FOREIGN_PVC = pvc(labels={}, annotations={})
TERMINATING_PVC = pvc(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["kubernetes.io/pvc-protection"])


@pytest.mark.parametrize(
    ("attached", "more", "waits_for", "deletes"),
    [
        (None, {}, "", False),
        (None, {"claim": FOREIGN_PVC}, "", False),
        (None, {"claim": pvc()}, "the end of PersistentVolumeClaim data", True),
        (None, {"claim": TERMINATING_PVC}, "data, which kubernetes.io/pvc-protection holds", False),
        (None, {"claim": pvc(phase="Lost")}, "the end of PersistentVolumeClaim data", True),
        (None, {"claim": pvc(), "mounted_in": ("Pod p",)}, "Pod p: delete", False),
        (None, {"claim": pvc(), "pods_trouble": "forbidden"}, "forbidden", False),
        (HELD, {"claim": pvc(), "holder": MOUNTING}, "GPUUnit web: delete or change the unit first", False),
        (HELD, {"claim": pvc(), "holder": STOPPED}, "GPUUnit web", False),
        (HELD, {"claim": pvc(), "holder": DROPPED}, "the end of PersistentVolumeClaim", True),
        (HELD, {"claim": pvc()}, "the end of PersistentVolumeClaim", True),
        (BY_OPERATION, {"claim": pvc()}, "the end of PersistentVolumeClaim", True),
        (BY_OPERATION, {}, "", False),
    ],
)
def test_finalizer_waits_for_mounting_pods_and_then_for_the_pvc(
    attached: Any, more: Any, waits_for: str, deletes: bool
) -> None:
    step = next_finalize_step(observed_storage(make_storage(attached, **TERMINATING), **more))
    assert waits_for in step.waiting_for
    assert bool(step.waiting_for) is bool(waits_for)
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
    found = pvc_index_keys(pod(claims=["data", "more"], deleted=deleted, phase=phase))
    assert found == (("runtime-instance/data", "runtime-instance/more") if mounted else ())


def test_deployment_references_the_pvcs_of_its_pods() -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}]
    full = msgspec.convert(
        {"metadata": metadata("web"), "spec": {"template": {"spec": {"volumes": volumes}}}}, RawDeployment
    )
    assert deployment_pvc_keys(full) == {ObjectKey("runtime-instance", "data")}
    assert deployment_pvc_keys(msgspec.structs.replace(full, spec={})) == set()


@pytest.mark.parametrize(
    ("volume", "replicas", "looked_at", "mounts"),
    [
        ("data", 1, True, True),
        ("data", 0, True, False),
        ("other", 1, True, False),
        ("other", 1, False, True),
        ("data", 0, False, True),
    ],
)
def test_unobserved_deployment_still_references_its_previous_pvcs(
    volume: str, replicas: int, looked_at: bool, mounts: bool
) -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": volume}}]
    changed = {
        "metadata": metadata("web") | {"generation": 2},
        "spec": {"replicas": replicas, "template": {"spec": {"volumes": volumes}}},
        "status": {"observedGeneration": 2 if looked_at else 1},
    }
    assert may_mount(msgspec.convert(changed, RawDeployment), ObjectKey("runtime-instance", "data")) is mounts


def test_events_enqueue_mounted_and_attached_storages() -> None:
    store: Store[Any] = Store()
    store.add_index(STORAGES_BY_UNIT, attached_unit_keys)
    store.add_index(STORAGES_BY_CLASS, storage_classes)
    store.put(make_storage(HELD))
    more, units = unit(storageMounts=[{"name": "more", "mountPath": "/more"}]), Store[Any]()
    units.put(more)
    concerns, data = GPUStorageMappers(store, units), ObjectKey("runtime-instance", "data")
    assert list(concerns.map_storage(make_storage(HELD))) == [ObjectKey("runtime-instance", "more")]
    assert list(concerns.map_storage(make_storage())) == []
    assert list(concerns.map_unit(more)) == [ObjectKey("runtime-instance", "more"), data]
    assert list(concerns.map_pod(pod(claims=["x"], phase="Failed"))) == [ObjectKey("runtime-instance", "x")]
    assert list(concerns.map_deployment(msgspec.convert({"metadata": metadata("web")}, RawDeployment))) == [data]
    assert list(concerns.map_pvc(pvc())) == [data]
