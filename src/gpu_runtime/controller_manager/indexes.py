"""Indexes of the informer stores: the index names, and the functions that compute the index keys. No I/O."""

from gpu_runtime.contract.crd.gpu_storage import GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import (
    GPU_RESOURCE,
    Label,
    UnitRole,
)
from gpu_runtime.controller_manager.source_stock_ref import source_stock
from gpu_runtime.controller_manager.volume_refs import pod_pvc_keys, unit_storage_keys
from gpu_runtime.kube.builtin_kinds import Pod
from gpu_runtime.kube.meta import ObjectKey

PODS_BY_UNIT_UID = "unit-uid"
"""Pods by the UID of their unit."""

PODS_BY_POOL_UID = "pool-uid"
"""Pods by the UID of their pool."""

UNITS_BY_SOURCE_STOCK = "source-stock"
"""Units by the UID of the stock unit that they were created from."""

UNITS_BY_STORAGE = "storage"
"""Units by the storages that they mount."""

FUNCTIONS_BY_REQUEST_ID = "request-id"
"""Functions by requestID."""

QUEUES_BY_UNIT_UID = "unit-uid"
"""FunctionQueues by the UID of each unit that may read the queue."""

PODS_WAITING_FOR_GPUS = "waiting"
"""Index with a single key, which selects the pods of active units that wait until a node has enough free GPUs."""

POOL_PODS_WITHOUT_NODE = "without-node"
"""Index with a single key, which selects the pods of adoptable pools that have no node yet."""

PODS_BY_PVC = "pvc"
"""Pods by the PersistentVolumeClaims that they mount."""

STORAGES_BY_UNIT = "attached"
"""Storages by the unit to which they are attached."""

STORAGES_BY_CLASS = "storage-class"
"""Storages by the name of their StorageClass."""


def unit_uids(pod: Pod) -> tuple[str, ...]:
    return _label_values(pod, Label.UNIT_UID)


def pool_uids(pod: Pod) -> tuple[str, ...]:
    return _label_values(pod, Label.POOL_UID)


def waiting_for_gpus(pod: Pod) -> tuple[str, ...]:
    """Select the pod of an active unit if it waits for GPUs."""
    labels, failure = pod.metadata.labels, pod.scheduling_failure
    waits = (
        failure is not None
        and f"Insufficient {GPU_RESOURCE}" in failure
        and labels.get(Label.ROLE) == UnitRole.ACTIVE
        and Label.UNIT in labels
        and pod.metadata.deletion_timestamp is None
    )
    return (PODS_WAITING_FOR_GPUS,) if waits else ()


def pool_pods_without_node(pod: Pod) -> tuple[str, ...]:
    waits = Label.PREPARED_BY in pod.metadata.labels and not pod.spec.node_name
    return (POOL_PODS_WITHOUT_NODE,) if waits and pod.metadata.deletion_timestamp is None else ()


def source_stock_uids(unit: GPUUnit) -> tuple[str, ...]:
    stock = source_stock(unit)
    return (stock.uid,) if stock else ()


def storage_index_keys(unit: GPUUnit) -> tuple[str, ...]:
    return tuple(map(str, unit_storage_keys(unit)))


def pvc_index_keys(pod: Pod) -> tuple[str, ...]:
    """Return the PersistentVolumeClaims that a pod mounts.

    A pod with a deletion timestamp counts until its object is deleted, because the kubelet unmounts the volumes after
    the containers have exited. A finished pod without a deletion timestamp, for example an evicted pod, does not count.
    Its object may exist for a long time, and all this time it would block its storages.
    """
    if pod.has_ended and pod.metadata.deletion_timestamp is None:
        return ()
    return tuple(map(str, pod_pvc_keys(pod)))


def attached_unit_keys(storage: GPUStorage) -> tuple[str, ...]:
    attachment = storage.spec.attached_to
    return (str(ObjectKey(storage.metadata.namespace, attachment.unit)),) if attachment else ()


def storage_classes(storage: GPUStorage) -> tuple[str, ...]:
    return (storage.spec.storage_class_name,)


def _label_values(pod: Pod, name: str) -> tuple[str, ...]:
    value = pod.metadata.labels.get(name)
    return (value,) if value else ()
