"""By what else than their names objects are found in the caches. Pure."""

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.names import Label
from gpu_runtime.controller_manager.gpu_unit.source_stock import source_stock
from gpu_runtime.kube.core import Pod
from gpu_runtime.kube.objects import Key

UNIT_UID = "unit-uid"
"""Pods by the unit they belong to."""

POOL_UID = "pool-uid"
"""Pods by the pool they belong to."""

SOURCE_STOCK = "source-stock"
"""Units by the stock they were made from."""

STORAGE = "storage"
"""Units by the storages they mount."""


def unit_uids(pod: Pod) -> tuple[str, ...]:
    return _label(pod, Label.UNIT_UID)


def pool_uids(pod: Pod) -> tuple[str, ...]:
    return _label(pod, Label.POOL_UID)


def source_stock_uids(unit: GPUUnit) -> tuple[str, ...]:
    stock = source_stock(unit)
    return (stock.uid,) if stock else ()


def storage_keys(unit: GPUUnit) -> tuple[str, ...]:
    return tuple(str(Key(unit.metadata.namespace, mount.name)) for mount in unit.spec.storage_mounts)


def _label(pod: Pod, name: str) -> tuple[str, ...]:
    value = pod.metadata.labels.get(name)
    return (value,) if value else ()
