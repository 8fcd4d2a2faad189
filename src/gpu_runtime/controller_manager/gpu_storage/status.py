"""The status of a storage, from what was seen. Nothing here awaits."""

from gpu_runtime.contract.crd.conditions import Reason, StoragePhase
from gpu_runtime.contract.crd.gpu_storage import GPUStorageStatus
from gpu_runtime.controller_manager.gpu_storage.children.pvc import growth, is_ours, requested
from gpu_runtime.controller_manager.gpu_storage.observe import Observed
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import Verdict
from gpu_runtime.controller_manager.workload.status_writer import condition
from gpu_runtime.kube.builtin_kinds import PersistentVolumeClaim
from gpu_runtime.kube.quantity import Quantity

RESIZING = (
    "FileSystemResizePending",
    "ControllerResizeError",
    "NodeResizeError",
)
"""Conditions of a claim that say more about its growth than that it goes on."""

SELECTED_NODE = "volume.kubernetes.io/selected-node"


def verdict(seen: Observed) -> Verdict:
    """Of a storage whose claim is there and is its own."""
    claim = seen.claim
    if claim is None:
        return Verdict(StoragePhase.PENDING, Reason.CLAIM_PENDING, "the claim is not made yet")
    if claim.status.phase == "Lost":
        return _lost(claim)
    if claim.status.phase != "Bound":
        return _pending(seen, claim)
    if growth(claim, seen.storage):
        return refused_growth(seen, "")
    if requested(claim) > _capacity(claim):
        return _growing(claim)
    return Verdict(StoragePhase.READY, Reason.STORAGE_READY, f"the volume is bound and holds {_capacity(claim)}")


def may_grow(seen: Observed) -> bool:
    """Whether it is worth asking Kubernetes for more: of a claim without a volume, it lets nothing change."""
    bound = seen.claim is not None and seen.claim.status.phase == "Bound"
    return bound and seen.storage_class is not None and seen.storage_class.allow_volume_expansion


def refused_growth(seen: Observed, said: str) -> Verdict:
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
    return Verdict(
        StoragePhase.READY, Reason.RESIZE_REFUSED, f"the volume cannot grow to {size}, its data is untouched: {why}"
    )


def status_of(seen: Observed, thought: Verdict, now: str) -> GPUStorageStatus:
    metadata, before, claim = seen.storage.metadata, seen.storage.status, seen.claim
    ours = claim is not None and is_ours(claim, seen.storage)
    return GPUStorageStatus(
        phase=thought.phase.value,
        claim_name=metadata.name if ours else None,
        # What there was is remembered: a claim that goes missing must not be taken for one that never was.
        capacity=_volume(seen) or before.capacity,
        mounted_by=seen.attached.unit if seen.attached else None,
        observed_generation=metadata.generation,
        last_sync_time=before.last_sync_time,
        conditions=condition(before.conditions, thought, metadata.generation, now),
    )


def _volume(seen: Observed) -> str | None:
    """How much the storage's own volume holds, where it has one that is not on its way out."""
    claim = seen.claim
    if claim is None or claim.metadata.deletion_timestamp or not is_ours(claim, seen.storage):
        return None
    return claim.status.capacity.get("storage") if claim.status.phase == "Bound" else None


def _capacity(claim: PersistentVolumeClaim) -> Quantity:
    return Quantity(claim.status.capacity.get("storage", "0"))


def _lost(claim: PersistentVolumeClaim) -> Verdict:
    text = f"PersistentVolume {claim.spec.volume_name} is gone, and the data with it unless it is restored"
    return Verdict(StoragePhase.FAILED, Reason.CLAIM_LOST, text)


def _pending(seen: Observed, claim: PersistentVolumeClaim) -> Verdict:
    name, found = seen.storage.spec.storage_class_name, seen.storage_class
    said = f": {seen.complaint}" if seen.complaint else ""
    if found is None:
        text = f"there is no StorageClass {name}: create it, or create another storage with a class that exists"
        return Verdict(StoragePhase.PENDING, Reason.CLAIM_PENDING, text)
    if found.volume_binding_mode == "WaitForFirstConsumer":
        node = claim.metadata.annotations.get(SELECTED_NODE)
        waits = f"provisioner {found.provisioner} makes the volume for node {node}" if node else "mount the storage"
        text = f"the volume is made when the first unit mounts it: {waits}"
        return Verdict(StoragePhase.PENDING, Reason.WAIT_FOR_FIRST_CONSUMER, text + said)
    text = f"provisioner {found.provisioner} of StorageClass {name} has not made the volume yet"
    return Verdict(StoragePhase.PENDING, Reason.CLAIM_PENDING, text + said)


def _growing(claim: PersistentVolumeClaim) -> Verdict:
    said = [each.message for each in claim.status.conditions if each.type in RESIZING and each.status == "True"]
    text = "; ".join([f"the volume grows from {_capacity(claim)} to {requested(claim)}", *filter(None, said)])
    return Verdict(StoragePhase.READY, Reason.RESIZE_PENDING, text)
