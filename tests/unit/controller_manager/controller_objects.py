"""Units, pools and what belongs to them, as a test needs them: everything that it does not say is plain."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.controller_manager.gpu_storage import observe as storage_seen
from gpu_runtime.controller_manager.gpu_unit import observe as unit_seen
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings, PodSecuritySettings
from gpu_runtime.controller_manager.stock_pool import observe as pool_seen
from gpu_runtime.controller_manager.workload.unstructured import RawDeployment, RawService
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.meta import Manifest

SETTINGS = ControllerManagerSettings(images=ImageSettings(stock="stock:1", placeholder="placeholder:1"))
NON_ROOT_SETTINGS = msgspec.structs.replace(SETTINGS, pod_security=PodSecuritySettings(require_non_root=True))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PORTS = [{"name": "http", "port": 80}, {"name": "voice", "port": 80, "protocol": "UDP"}]


def metadata(name: str, namespace: str = "runtime-instance", **more: Any) -> Manifest:
    return {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1, **more}


def unit(namespace: str = "runtime-instance", annotations: Manifest | None = None, **spec: Any) -> GPUUnit:
    given = {"specName": "g1.1", "image": "python", **spec}
    return msgspec.convert(
        {"metadata": metadata("web", namespace, annotations=annotations or {}), "spec": given}, GPUUnit
    )


def pool(**spec: Any) -> StockPool:
    given = {"specName": "g1.1", "replicas": 2, **spec}
    return msgspec.convert({"metadata": metadata("warm"), "spec": given}, StockPool)


def observed_unit(found: GPUUnit, **more: Any) -> unit_seen.ObservedUnit:
    given = {name: MappingProxyType(more.pop(name, {})) for name in ("storages", "mounting")}
    return unit_seen.ObservedUnit(unit=found, **{"settings": SETTINGS, **given, **more})


def observed_pool(found: StockPool, **more: Any) -> pool_seen.ObservedPool:
    return pool_seen.ObservedPool(pool=found, **{"settings": SETTINGS, **more})


def storage_in_phase(phase: str | None = None, attached: str | None = None) -> GPUStorage:
    spec: Manifest = {"size": "1Gi"} | ({"attachedTo": {"unit": attached}} if attached else {})
    return msgspec.convert({"metadata": metadata("data"), "spec": spec, "status": {"phase": phase}}, GPUStorage)


def make_storage(attached: Manifest | None = None, status: Manifest | None = None, **more: Any) -> GPUStorage:
    """Of the name `data`. What is neither about its attachment nor its status is its spec or its metadata."""
    about = {name: more.pop(name) for name in ("deletionTimestamp", "finalizers") if name in more}
    spec = {"size": "1Gi", **more} | ({"attachedTo": attached} if attached else {})
    content = {"metadata": metadata("data", **about), "spec": spec, "status": status or {}}
    return msgspec.convert(content, GPUStorage)


def observed_storage(found: GPUStorage, **more: Any) -> storage_seen.ObservedStorage:
    return storage_seen.ObservedStorage(storage=found, **{"now": NOON, **more})


def pvc(phase: str = "Bound", capacity: str = "1Gi", requested: str = "1Gi", **more: Any) -> PersistentVolumeClaim:
    """The claim of the storage `data`, as it should be."""
    about = {
        "labels": {"app.kubernetes.io/managed-by": "gpu-runtime", "runtime.lokiwager.io/storage": "data"},
        "annotations": {"runtime.lokiwager.io/storage-uid": "uid-of-data"},
    }
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "rook-ceph-block", "volumeName": "volume-1"}
    spec |= {"resources": {"requests": {"storage": requested}}} | more.pop("spec", {})
    status = {"phase": phase, "capacity": {"storage": capacity} if capacity else {}, **more.pop("status", {})}
    content = {"metadata": metadata("data", **{**about, **more}), "spec": spec, "status": status}
    return msgspec.convert(content, PersistentVolumeClaim)


def storage_class(allow_expansion: bool = True, binding: str = "Immediate") -> StorageClass:
    content = {"provisioner": "driver", "allowVolumeExpansion": allow_expansion, "volumeBindingMode": binding}
    return msgspec.convert({"metadata": {"name": "rook-ceph-block"}, **content}, StorageClass)


def deployment(generation: int = 1, conditions: Any = (), **status: int) -> RawDeployment:
    counted = {"observedGeneration": 1, "conditions": list(conditions), **status}
    return msgspec.convert({"metadata": metadata("web", generation=generation), "status": counted}, RawDeployment)


def running_deployment(replicas: int = 1, **more: Any) -> RawDeployment:
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas)
    return deployment(**{**counts, **more})


def pod(name: str = "web-1", created: str = "2026-01-01T00:00:00Z", deleted: str | None = None, **status: Any) -> Pod:
    about = metadata(name, creationTimestamp=created, deletionTimestamp=deleted, labels=status.pop("labels", {}))
    mounted = [{"persistentVolumeClaim": {"claimName": name}} for name in status.pop("claims", ())]
    content = {"metadata": about, "spec": {"volumes": [{"name": "other"}, *mounted]}, "status": status}
    return msgspec.convert(content, Pod)


def container(state: Manifest, **more: Any) -> Manifest:
    return {"name": "main", "image": "python", "state": state, **more}


def as_stored(wanted: Manifest, kind: type[RawDeployment] | type[RawService], **more: Any) -> Any:
    """The object as the API server gives it back: what is empty is left out, what was not said has its default."""
    defaults = {"progressDeadlineSeconds": 600} if kind is RawDeployment else {"sessionAffinity": "None"}
    spec = _without_empty(wanted["spec"]) | defaults
    about = wanted["metadata"] | {"uid": "uid-of-the-child", "resourceVersion": "7", **more}
    return msgspec.convert({"metadata": about, "spec": spec}, kind)


def _without_empty(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_empty(each) for key, each in value.items() if each not in ("", [], {})}
        case list():
            return [_without_empty(each) for each in value]
    return value
