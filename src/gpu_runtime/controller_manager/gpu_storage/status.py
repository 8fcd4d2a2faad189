"""Computes the phase, Ready condition and status of a storage from an `ObservedStorage`. No I/O."""

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorageStatus
from gpu_runtime.controller_manager.gpu_storage.children.pvc import expansion_patch, is_pvc_of, requested_size
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import StorageReadiness
from gpu_runtime.controller_manager.workload.status_writer import with_ready_condition
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim
from gpu_runtime.kube.quantity import Quantity

RESIZE_CONDITIONS = (
    "FileSystemResizePending",
    "ControllerResizeError",
    "NodeResizeError",
)
"""Conditions of a PersistentVolumeClaim (PVC) whose messages explain why a resize has not finished."""

SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"


def readiness(observed: ObservedStorage) -> StorageReadiness:
    """Return the readiness of a storage that violates no rule. If its PVC exists, the PVC belongs to the storage."""
    pvc = observed.pvc
    if pvc is None:
        return StorageReadiness(
            StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, "the PersistentVolumeClaim is not created yet"
        )
    if pvc.status.phase == "Lost":
        text = f"PersistentVolume {pvc.spec.volume_name} does not exist any more: restore it, or its data is lost"
        return StorageReadiness(StoragePhase.FAILED, ReadyReason.CLAIM_LOST, text)
    if pvc.status.phase != "Bound":
        return _pending(observed, pvc)
    if expansion_patch(pvc, observed.storage):
        return expansion_refused(observed, "")
    if requested_size(pvc) > _pvc_capacity(pvc):
        return _resizing(pvc)
    return StorageReadiness(
        StoragePhase.READY, ReadyReason.STORAGE_READY, f"the volume is bound and has a capacity of {_pvc_capacity(pvc)}"
    )


def can_expand(observed: ObservedStorage) -> bool:
    """Return whether Kubernetes may accept a larger size. It rejects the change if the PVC is not bound to a volume."""
    bound = observed.pvc is not None and observed.pvc.status.phase == "Bound"
    return bound and observed.storage_class is not None and observed.storage_class.allow_volume_expansion


def expansion_refused(observed: ObservedStorage, api_error: str) -> StorageReadiness:
    """Report that the volume cannot be expanded. Units can still mount the storage, and the data is unchanged."""
    name, size = observed.storage.spec.storage_class_name, observed.storage.spec.size
    if api_error:
        cause = api_error
    elif observed.storage_class is None:
        cause = f"StorageClass {name} does not exist: create it with allowVolumeExpansion set to true"
    else:
        cause = f"StorageClass {name} does not allow volume expansion: set its allowVolumeExpansion to true"
    return StorageReadiness(
        StoragePhase.READY,
        ReadyReason.RESIZE_REFUSED,
        f"the volume and its data are unchanged, because the volume cannot be expanded to {size}: {cause}",
    )


def status_of(observed: ObservedStorage, result: StorageReadiness, now: str) -> GPUStorageStatus:
    metadata, before, pvc = observed.storage.metadata, observed.storage.status, observed.pvc
    is_own_pvc = pvc is not None and is_pvc_of(pvc, observed.storage)
    return GPUStorageStatus(
        phase=result.phase.value,
        claim_name=metadata.name if is_own_pvc else None,
        # Keep the last capacity. If the PVC disappears later, the capacity shows that the PVC had a volume.
        capacity=_bound_capacity(observed) or before.capacity,
        mounted_by=observed.attachment.unit if observed.attachment else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        conditions=with_ready_condition(before.conditions, result, metadata.generation, now),
    )


def _bound_capacity(observed: ObservedStorage) -> str | None:
    """Return the capacity of the bound volume, or None if the storage has none or if its PVC is being deleted."""
    pvc = observed.pvc
    if pvc is None or pvc.metadata.deletion_timestamp or not is_pvc_of(pvc, observed.storage):
        return None
    return pvc.status.capacity.get("storage") if pvc.status.phase == "Bound" else None


def _pvc_capacity(pvc: PersistentVolumeClaim) -> Quantity:
    return Quantity(pvc.status.capacity.get("storage", "0"))


def _pending(observed: ObservedStorage, pvc: PersistentVolumeClaim) -> StorageReadiness:
    name, storage_class = observed.storage.spec.storage_class_name, observed.storage_class
    warning = f": {observed.provisioner_warning}" if observed.provisioner_warning else ""
    if storage_class is None:
        text = f"StorageClass {name} does not exist: create it, or create another GPUStorage with an existing class"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text)
    if storage_class.volume_binding_mode == "WaitForFirstConsumer":
        node = pvc.metadata.annotations.get(SELECTED_NODE_ANNOTATION)
        next_step = (
            f"provisioner {storage_class.provisioner} is creating the volume for node {node}"
            if node
            else "create a unit that mounts the storage"
        )
        text = f"the volume is created when the first unit mounts the storage: {next_step}"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.WAIT_FOR_FIRST_CONSUMER, text + warning)
    text = f"provisioner {storage_class.provisioner} of StorageClass {name} has not created the volume yet"
    return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text + warning)


def _resizing(pvc: PersistentVolumeClaim) -> StorageReadiness:
    explanations = [
        each.message for each in pvc.status.conditions if each.type in RESIZE_CONDITIONS and each.status == "True"
    ]
    progress = f"the volume is being expanded from {_pvc_capacity(pvc)} to {requested_size(pvc)}"
    text = "; ".join([progress, *filter(None, explanations)])
    return StorageReadiness(StoragePhase.READY, ReadyReason.RESIZE_PENDING, text)
