"""Builders of units, pools, storages and their Kubernetes objects. Fields that a test does not set have defaults."""

from datetime import UTC, datetime
from types import MappingProxyType
from typing import Any

import msgspec

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.controller_manager.gpu_storage import observe as storage_observe
from gpu_runtime.controller_manager.gpu_unit import observe as unit_observe
from gpu_runtime.controller_manager.settings import ControllerManagerSettings, ImageSettings, PodSettings
from gpu_runtime.controller_manager.stock_pool import observe as pool_observe
from gpu_runtime.controller_manager.unstructured import RawDeployment, RawService
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim, Pod, StorageClass
from gpu_runtime.kube.meta import Manifest

SETTINGS = ControllerManagerSettings(images=ImageSettings(stock="stock:1", placeholder="placeholder:1"))
NON_ROOT_SETTINGS = msgspec.structs.replace(SETTINGS, pods=PodSettings(require_non_root=True))
NOON = datetime(2026, 1, 1, 12, tzinfo=UTC)
PORTS = [{"name": "http", "port": 80}, {"name": "voice", "port": 80, "protocol": "UDP"}]


def metadata(name: str, namespace: str = "runtime-instance", **fields: Any) -> Manifest:
    return {"name": name, "namespace": namespace, "uid": f"uid-of-{name}", "generation": 1, **fields}


def unit(namespace: str = "runtime-instance", annotations: Manifest | None = None, **spec: Any) -> GPUUnit:
    content = {
        "metadata": metadata("web", namespace, annotations=annotations or {}),
        "spec": {"specName": "g1.1", "image": "python", **spec},
    }
    return msgspec.convert(content, GPUUnit)


def pool(**spec: Any) -> StockPool:
    content = {"metadata": metadata("warm"), "spec": {"specName": "g1.1", "replicas": 2, **spec}}
    return msgspec.convert(content, StockPool)


def observed_unit(unit: GPUUnit, **fields: Any) -> unit_observe.ObservedUnit:
    mappings = {name: MappingProxyType(fields.pop(name, {})) for name in ("storages", "mounting_pods")}
    return unit_observe.ObservedUnit(unit=unit, **{"settings": SETTINGS, "now": NOON, **mappings, **fields})


def observed_pool(pool: StockPool, **fields: Any) -> pool_observe.ObservedPool:
    return pool_observe.ObservedPool(pool=pool, **{"settings": SETTINGS, **fields})


def storage_in_phase(phase: str | None = None, attached: str | None = None) -> GPUStorage:
    spec: Manifest = {"size": "1Gi"} | ({"attachedTo": {"unit": attached}} if attached else {})
    return msgspec.convert({"metadata": metadata("data"), "spec": spec, "status": {"phase": phase}}, GPUStorage)


def make_storage(attached: Manifest | None = None, status: Manifest | None = None, **fields: Any) -> GPUStorage:
    """Return a storage with the name `data`. `fields` are fields of its spec, deletionTimestamp or finalizers."""
    metadata_fields = {name: fields.pop(name) for name in ("deletionTimestamp", "finalizers") if name in fields}
    spec = {"size": "1Gi", **fields} | ({"attachedTo": attached} if attached else {})
    content = {"metadata": metadata("data", **metadata_fields), "spec": spec, "status": status or {}}
    return msgspec.convert(content, GPUStorage)


def observed_storage(storage: GPUStorage, **fields: Any) -> storage_observe.ObservedStorage:
    return storage_observe.ObservedStorage(storage=storage, **{"now": NOON, **fields})


def pvc(phase: str = "Bound", capacity: str = "1Gi", requested: str = "1Gi", **fields: Any) -> PersistentVolumeClaim:
    """Return the PVC of the storage `data`, with correct metadata. `fields` are metadata fields, `spec` or `status`."""
    default_metadata = {
        "labels": {"app.kubernetes.io/managed-by": "gpu-runtime", "runtime.lokiwager.io/storage": "data"},
        "annotations": {"runtime.lokiwager.io/storage-uid": "uid-of-data"},
    }
    spec = {"accessModes": ["ReadWriteOnce"], "storageClassName": "rook-ceph-block", "volumeName": "volume-1"}
    spec |= {"resources": {"requests": {"storage": requested}}} | fields.pop("spec", {})
    status = {"phase": phase, "capacity": {"storage": capacity} if capacity else {}, **fields.pop("status", {})}
    content = {"metadata": metadata("data", **{**default_metadata, **fields}), "spec": spec, "status": status}
    return msgspec.convert(content, PersistentVolumeClaim)


def storage_class(allow_expansion: bool = True, binding: str = "Immediate") -> StorageClass:
    content = {"provisioner": "driver", "allowVolumeExpansion": allow_expansion, "volumeBindingMode": binding}
    return msgspec.convert({"metadata": {"name": "rook-ceph-block"}, **content}, StorageClass)


def deployment(generation: int = 1, conditions: Any = (), **status: int) -> RawDeployment:
    content = {
        "metadata": metadata("web", generation=generation),
        "status": {"observedGeneration": 1, "conditions": list(conditions), **status},
    }
    return msgspec.convert(content, RawDeployment)


def running_deployment(replicas: int = 1, **fields: Any) -> RawDeployment:
    counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), replicas)
    return deployment(**{**counts, **fields})


def pod(name: str = "web-1", created: str = "2026-01-01T00:00:00Z", deleted: str | None = None, **status: Any) -> Pod:
    labels = status.pop("labels", {})
    pod_metadata = metadata(name, creationTimestamp=created, deletionTimestamp=deleted, labels=labels)
    mounted = [{"persistentVolumeClaim": {"claimName": name}} for name in status.pop("claims", ())]
    spec = {"nodeName": status.pop("node", ""), "priorityClassName": status.pop("priority", "")}
    spec |= {"volumes": [{"name": "other"}, *mounted]}
    content = {"metadata": pod_metadata, "spec": spec, "status": status}
    return msgspec.convert(content, Pod)


def container(state: Manifest, **fields: Any) -> Manifest:
    return {"name": "main", "image": "python", "state": state, **fields}


def as_stored(desired: Manifest, kind: type[RawDeployment] | type[RawService], **fields: Any) -> Any:
    """Return the object as the API server returns it: empty fields are omitted, and missing fields have defaults."""
    defaults = {"progressDeadlineSeconds": 600} if kind is RawDeployment else {"sessionAffinity": "None"}
    spec = _without_empty(desired["spec"]) | defaults
    stored_metadata = desired["metadata"] | {"uid": "uid-of-the-child", "resourceVersion": "7", **fields}
    return msgspec.convert({"metadata": stored_metadata, "spec": spec}, kind)


def _without_empty(value: Any) -> Any:
    match value:
        case dict():
            return {key: _without_empty(each) for key, each in value.items() if each not in ("", [], {})}
        case list():
            return [_without_empty(each) for each in value]
    return value
