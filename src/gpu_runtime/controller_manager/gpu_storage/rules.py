"""What must hold before a storage's claim is made or changed, as ordered data: the first broken rule is told."""

from collections.abc import Callable, Sequence

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.contract.validation import storage_errors
from gpu_runtime.controller_manager.gpu_storage.children.pvc import ACCESS_MODE, is_pvc_of
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import StorageReadiness

StorageRule = Callable[[ObservedStorage], StorageReadiness | None]


def invalid_spec(seen: ObservedStorage) -> StorageReadiness | None:
    problems = storage_errors(seen.storage.spec, path="spec")
    return _failed(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def pvc_name_conflict(seen: ObservedStorage) -> StorageReadiness | None:
    if seen.pvc is None or is_pvc_of(seen.pvc, seen.storage):
        return None
    name = seen.storage.metadata.name
    return _failed(
        ReadyReason.NAME_TAKEN,
        f"PersistentVolumeClaim {name} exists and belongs to somebody else: rename one of them, or hand the claim over"
        f" with the label {Label.STORAGE}={name}",
    )


def pvc_lost(seen: ObservedStorage) -> StorageReadiness | None:
    """An empty volume must not silently take the place of one that held data."""
    if seen.pvc is not None or not _was_provisioned(seen):
        return None
    return _failed(
        ReadyReason.CLAIM_LOST,
        f"PersistentVolumeClaim {seen.storage.metadata.name} was deleted by somebody else, and the data with it:"
        " restore the claim, or delete this GPUStorage and create it anew",
    )


def pvc_deleting(seen: ObservedStorage) -> StorageReadiness | None:
    if seen.pvc is None or seen.pvc.metadata.deletion_timestamp is None:
        return None
    name = seen.storage.metadata.name
    if not _was_provisioned(seen):
        text = f"PersistentVolumeClaim {name} of an earlier storage is still being deleted"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text)
    return _failed(
        ReadyReason.CLAIM_LOST,
        f"PersistentVolumeClaim {name} is being deleted by somebody else: its data goes when the last pod that mounts"
        " it ends; copy it before",
    )


def pvc_incompatible(seen: ObservedStorage) -> StorageReadiness | None:
    """What cannot be changed about a claim that was adopted."""
    if seen.pvc is None:
        return None
    found, wanted = seen.pvc.spec, seen.storage.spec.storage_class_name
    if (found.storage_class_name or "") != wanted:
        said = f"is of class {found.storage_class_name or 'none'}, and this storage of class {wanted}"
    elif ACCESS_MODE not in found.access_modes:
        said = f"does not allow {ACCESS_MODE}"
    else:
        return None
    return _failed(
        ReadyReason.CLAIM_SYNC_FAILED,
        f"PersistentVolumeClaim {seen.storage.metadata.name} {said}, which can never be changed: create a storage that"
        " fits the claim",
    )


STORAGE_RULES: Sequence[StorageRule] = (invalid_spec, pvc_name_conflict, pvc_lost, pvc_deleting, pvc_incompatible)


def first_violation(rules: Sequence[StorageRule], seen: ObservedStorage) -> StorageReadiness | None:
    return next((found for rule in rules if (found := rule(seen))), None)


def _was_provisioned(seen: ObservedStorage) -> bool:
    return seen.storage.status.capacity is not None


def _failed(reason: ReadyReason, message: str) -> StorageReadiness:
    return StorageReadiness(StoragePhase.FAILED, reason, message)
