"""By what else than their names objects are found in the caches. Pure."""

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.controller_manager.gpu_unit.source_stock import source_stock
from gpu_runtime.controller_manager.volume_refs import pod_pvc_keys, unit_storage_keys
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey

PODS_BY_UNIT_UID = "unit-uid"
"""Pods by the unit they belong to."""

PODS_BY_POOL_UID = "pool-uid"
"""Pods by the pool they belong to."""

UNITS_BY_SOURCE_STOCK = "source-stock"
"""Units by the stock they were made from."""

UNITS_BY_STORAGE = "storage"
"""Units by the storages they mount."""

PODS_BY_PVC = "claim"
"""Pods by the claims they mount."""

STORAGES_BY_UNIT = "attached"
"""Storages by the unit that they are attached to."""

STORAGES_BY_CLASS = "storage-class"
"""Storages by their class."""


def unit_uids(pod: Pod) -> tuple[str, ...]:
    return _label_values(pod, Label.UNIT_UID)


def pool_uids(pod: Pod) -> tuple[str, ...]:
    return _label_values(pod, Label.POOL_UID)


def source_stock_uids(unit: GPUUnit) -> tuple[str, ...]:
    stock = source_stock(unit)
    return (stock.uid,) if stock else ()


def storage_index_keys(unit: GPUUnit) -> tuple[str, ...]:
    return tuple(map(str, unit_storage_keys(unit)))


def pvc_index_keys(pod: Pod) -> tuple[str, ...]:
    """The claims that a pod mounts.

    One that is being deleted does so until it is gone: its node takes the volumes away after the containers have ended.
    One that ended and stays, since it was evicted, holds nothing and would be in the way for ever.
    """
    if pod.status.phase in ("Failed", "Succeeded") and pod.metadata.deletion_timestamp is None:
        return ()
    return tuple(map(str, pod_pvc_keys(pod)))


def attached_unit_keys(storage: GPUStorage) -> tuple[str, ...]:
    attached = storage.spec.attached_to
    return (str(ObjectKey(storage.metadata.namespace, attached.unit)),) if attached else ()


def storage_classes(storage: GPUStorage) -> tuple[str, ...]:
    return (storage.spec.storage_class_name,)


def _label_values(pod: Pod, name: str) -> tuple[str, ...]:
    value = pod.metadata.labels.get(name)
    return (value,) if value else ()
