"""Who holds a storage, and what its end waits for: each decision from what was seen."""

from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_storage.attachment import (
    AskOperation,
    Attach,
    Keep,
    LookAgain,
    Release,
    next_step,
)
from gpu_runtime.controller_manager.gpu_storage.finalize import ending
from gpu_runtime.controller_manager.gpu_storage.gpu_storage_mappers import Concerns
from gpu_runtime.controller_manager.gpu_storage.observe import may_mount
from gpu_runtime.controller_manager.indexes import (
    ATTACHED,
    STORAGE_CLASS,
    attached_units,
    claim_keys,
    storage_classes,
)
from gpu_runtime.controller_manager.volume_refs import claims_of_deployment
from gpu_runtime.controller_manager.workload.unstructured import Deployment
from gpu_runtime.kube.meta import Key
from gpu_runtime.kube.store import Store
from tests.unit.controller_manager.objects import a_storage, claim, metadata, pod, seen_storage, unit

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
MADE = unit(annotations={Annotation.OPERATION_ID: "op-1"})
MADE_BY_ANOTHER = unit(annotations={Annotation.OPERATION_ID: "op-0"})
ASK = AskOperation("op-1", "web")


@pytest.mark.parametrize(
    ("attached", "status", "more", "step"),
    [
        (None, {}, {}, Keep()),
        (None, {}, {"claimants": (MOUNTING,)}, Attach("web")),
        (HELD, OLD, {"holder": MOUNTING}, Keep()),
        (HELD, OLD, {"holder": STOPPED}, Keep()),
        (HELD, OLD, {"holder": DROPPED}, Release("web")),
        (HELD, OLD, {}, Release("web")),
        (HELD, OLD, {"mounted_in": ("Pod p",)}, Keep()),
        (HELD, OLD, {"holder": DROPPED, "mounted_in": ("Deployment web",)}, Keep()),
        (HELD, OLD, {"pods_trouble": "forbidden"}, LookAgain(1.0)),
        (HELD, FRESH, {"holder": DROPPED}, LookAgain(3.0)),
        (HELD, FAR_AHEAD, {"holder": DROPPED}, Release("web")),
        (HELD, {}, {"holder": DROPPED}, LookAgain(3.0)),
        (HELD, OF_ANOTHER, {"holder": DROPPED}, LookAgain(3.0)),
        (HELD, FRESH, {}, Release("web")),
        (HELD, {}, {}, Release("web")),
        (BY_OPERATION, OLD, {}, ASK),
        (BY_OPERATION, {}, {}, ASK),
        (BY_OPERATION, OLD, {"holder": MADE_BY_ANOTHER}, ASK),
        (BY_OPERATION, OLD, {"holder": MADE}, Release("web")),
        (BY_OPERATION, FRESH, {"holder": MADE}, LookAgain(3.0)),
        (BY_OPERATION, OLD, {"holder": MOUNTING}, Keep()),
        (BY_OPERATION, OLD, {"mounted_in": ("Pod p",)}, Keep()),
    ],
)
def test_the_next_step_of_an_attachment(attached: Any, status: Any, more: Any, step: Any) -> None:
    assert next_step(seen_storage(a_storage(attached, status), **more)) == step


GOING: dict[str, Any] = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
STRANGE = claim(labels={}, annotations={})
ENDING = claim(deletionTimestamp="2026-01-01T00:00:00Z", finalizers=["kubernetes.io/pvc-protection"])


@pytest.mark.parametrize(
    ("attached", "more", "waits_for", "deletes"),
    [
        (None, {}, "", False),
        (None, {"claim": STRANGE}, "", False),
        (None, {"claim": claim()}, "the end of PersistentVolumeClaim data", True),
        (None, {"claim": ENDING}, "data, which kubernetes.io/pvc-protection holds", False),
        (None, {"claim": claim(phase="Lost")}, "the end of PersistentVolumeClaim data", True),
        (None, {"claim": claim(), "mounted_in": ("Pod p",)}, "Pod p: delete", False),
        (None, {"claim": claim(), "pods_trouble": "forbidden"}, "forbidden", False),
        (HELD, {"claim": claim(), "holder": MOUNTING}, "GPUUnit web: delete or change the unit first", False),
        (HELD, {"claim": claim(), "holder": STOPPED}, "GPUUnit web", False),
        (HELD, {"claim": claim(), "holder": DROPPED}, "the end of PersistentVolumeClaim", True),
        (HELD, {"claim": claim()}, "the end of PersistentVolumeClaim", True),
        (BY_OPERATION, {"claim": claim()}, "the end of PersistentVolumeClaim", True),
        (BY_OPERATION, {}, "", False),
    ],
)
def test_the_end_of_a_storage_waits_for_what_mounts_it_and_then_for_its_claim(
    attached: Any, more: Any, waits_for: str, deletes: bool
) -> None:
    step = ending(seen_storage(a_storage(attached, **GOING), **more))
    assert waits_for in step.waits_for
    assert bool(step.waits_for) is bool(waits_for)
    assert (step.delete_claim is not None) is deletes


@pytest.mark.parametrize(
    ("phase", "deleted", "mounted"),
    [
        ("Pending", None, True),
        ("Running", None, True),
        ("Failed", None, False),
        ("Succeeded", "2026-01-01T00:00:30Z", True),
    ],
)
def test_a_pod_mounts_its_claims_until_it_is_gone_or_has_ended_and_stays(
    phase: str, deleted: str | None, mounted: bool
) -> None:
    found = claim_keys(pod(claims=["data", "more"], deleted=deleted, phase=phase))
    assert found == (("runtime-instance/data", "runtime-instance/more") if mounted else ())


def test_a_deployment_names_the_claims_that_its_pods_mount() -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": "data"}}, {"name": "b", "emptyDir": {}}]
    full = msgspec.convert(
        {"metadata": metadata("web"), "spec": {"template": {"spec": {"volumes": volumes}}}}, Deployment
    )
    assert claims_of_deployment(full) == {Key("runtime-instance", "data")}
    assert claims_of_deployment(msgspec.structs.replace(full, spec={})) == set()


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
def test_a_deployment_may_mount_what_it_did_until_kubernetes_has_looked_at_its_change(
    volume: str, replicas: int, looked_at: bool, mounts: bool
) -> None:
    volumes = [{"name": "a", "persistentVolumeClaim": {"claimName": volume}}]
    changed = {
        "metadata": metadata("web") | {"generation": 2},
        "spec": {"replicas": replicas, "template": {"spec": {"volumes": volumes}}},
        "status": {"observedGeneration": 2 if looked_at else 1},
    }
    assert may_mount(msgspec.convert(changed, Deployment), Key("runtime-instance", "data")) is mounts


def test_a_change_concerns_the_storages_that_are_mounted_and_those_that_are_held() -> None:
    store: Store[Any] = Store()
    store.index_by(ATTACHED, attached_units)
    store.index_by(STORAGE_CLASS, storage_classes)
    store.put(a_storage(HELD))
    more, units = unit(storageMounts=[{"name": "more", "mountPath": "/more"}]), Store[Any]()
    units.put(more)
    concerns, data = Concerns(store, units), Key("runtime-instance", "data")
    assert list(concerns.of_storage(a_storage(HELD))) == [Key("runtime-instance", "more")]
    assert list(concerns.of_storage(a_storage())) == []
    assert list(concerns.of_unit(more)) == [Key("runtime-instance", "more"), data]
    assert list(concerns.of_pod(pod(claims=["x"], phase="Failed"))) == [Key("runtime-instance", "x")]
    assert list(concerns.of_deployment(msgspec.convert({"metadata": metadata("web")}, Deployment))) == [data]
    assert list(concerns.of_claim(claim())) == [data]
