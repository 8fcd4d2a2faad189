"""The status of a storage, from what was seen. Nothing here awaits."""

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
"""Conditions of a claim that say more about its growth than that it goes on."""

SELECTED_NODE_ANNOTATION = "volume.kubernetes.io/selected-node"


def readiness(seen: ObservedStorage) -> StorageReadiness:
    """Of a storage whose claim is there and is its own."""
    claim = seen.pvc
    if claim is None:
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, "the claim is not made yet")
    if claim.status.phase == "Lost":
        return _lost(claim)
    if claim.status.phase != "Bound":
        return _pending(seen, claim)
    if expansion_patch(claim, seen.storage):
        return expansion_refused(seen, "")
    if requested_size(claim) > _pvc_capacity(claim):
        return _resizing(claim)
    return StorageReadiness(
        StoragePhase.READY, ReadyReason.STORAGE_READY, f"the volume is bound and holds {_pvc_capacity(claim)}"
    )


def can_expand(seen: ObservedStorage) -> bool:
    """Whether it is worth asking Kubernetes for more: of a claim without a volume, it lets nothing change."""
    bound = seen.pvc is not None and seen.pvc.status.phase == "Bound"
    return bound and seen.storage_class is not None and seen.storage_class.allow_volume_expansion


def expansion_refused(seen: ObservedStorage, said: str) -> StorageReadiness:
    """The data stays as it is, and can be mounted."""
    name, size = seen.storage.spec.storage_class_name, seen.storage.spec.size
    if said:
        why = said
    elif seen.storage_class is None:
        why = (
            f"there is no StorageClass {name}, which would have to allow it: create it with allowVolumeExpansion: true"
        )
    else:
        why = f"StorageClass {name} does not allow volumes to grow: set its allowVolumeExpansion to true"
    return StorageReadiness(
        StoragePhase.READY,
        ReadyReason.RESIZE_REFUSED,
        f"the volume cannot grow to {size}, its data is untouched: {why}",
    )


def status_of(seen: ObservedStorage, thought: StorageReadiness, now: str) -> GPUStorageStatus:
    metadata, before, claim = seen.storage.metadata, seen.storage.status, seen.pvc
    ours = claim is not None and is_pvc_of(claim, seen.storage)
    return GPUStorageStatus(
        phase=thought.phase.value,
        claim_name=metadata.name if ours else None,
        # What there was is remembered: a claim that goes missing must not be taken for one that never was.
        capacity=_bound_capacity(seen) or before.capacity,
        mounted_by=seen.attachment.unit if seen.attachment else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        conditions=with_ready_condition(before.conditions, thought, metadata.generation, now),
    )


def _bound_capacity(seen: ObservedStorage) -> str | None:
    """How much the storage's own volume holds, where it has one that is not on its way out."""
    claim = seen.pvc
    if claim is None or claim.metadata.deletion_timestamp or not is_pvc_of(claim, seen.storage):
        return None
    return claim.status.capacity.get("storage") if claim.status.phase == "Bound" else None


def _pvc_capacity(claim: PersistentVolumeClaim) -> Quantity:
    return Quantity(claim.status.capacity.get("storage", "0"))


def _lost(claim: PersistentVolumeClaim) -> StorageReadiness:
    text = f"PersistentVolume {claim.spec.volume_name} is gone, and the data with it unless it is restored"
    return StorageReadiness(StoragePhase.FAILED, ReadyReason.CLAIM_LOST, text)


def _pending(seen: ObservedStorage, claim: PersistentVolumeClaim) -> StorageReadiness:
    name, found = seen.storage.spec.storage_class_name, seen.storage_class
    said = f": {seen.provisioner_warning}" if seen.provisioner_warning else ""
    if found is None:
        text = f"there is no StorageClass {name}: create it, or create another storage with a class that exists"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text)
    if found.volume_binding_mode == "WaitForFirstConsumer":
        node = claim.metadata.annotations.get(SELECTED_NODE_ANNOTATION)
        waits = f"provisioner {found.provisioner} makes the volume for node {node}" if node else "mount the storage"
        text = f"the volume is made when the first unit mounts it: {waits}"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.WAIT_FOR_FIRST_CONSUMER, text + said)
    text = f"provisioner {found.provisioner} of StorageClass {name} has not made the volume yet"
    return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text + said)


def _resizing(claim: PersistentVolumeClaim) -> StorageReadiness:
    said = [
        each.message for each in claim.status.conditions if each.type in RESIZE_CONDITIONS and each.status == "True"
    ]
    text = "; ".join([f"the volume grows from {_pvc_capacity(claim)} to {requested_size(claim)}", *filter(None, said)])
    return StorageReadiness(StoragePhase.READY, ReadyReason.RESIZE_PENDING, text)
