"""Rules that a storage must fulfil before its PersistentVolumeClaim (PVC) is created or changed.

The rules are checked in order. The Ready condition of the storage reports the first violated rule.
"""

from collections.abc import Callable, Sequence

from gpu_runtime.contract.crd.conditions import ReadyReason, StoragePhase
from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.contract.validation import storage_errors
from gpu_runtime.controller_manager.gpu_storage.children.pvc import ACCESS_MODE, is_pvc_of
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.controller_manager.gpu_storage.storage_readiness import StorageReadiness

StorageRule = Callable[[ObservedStorage], StorageReadiness | None]


def invalid_spec(observed: ObservedStorage) -> StorageReadiness | None:
    problems = storage_errors(observed.storage.spec, path="spec")
    return _failed(ReadyReason.INVALID_SPEC, "; ".join(map(str, problems))) if problems else None


def pvc_name_conflict(observed: ObservedStorage) -> StorageReadiness | None:
    if observed.pvc is None or is_pvc_of(observed.pvc, observed.storage):
        return None
    name = observed.storage.metadata.name
    return _failed(
        ReadyReason.NAME_TAKEN,
        f"PersistentVolumeClaim {name} already exists and does not belong to this GPUStorage: create the GPUStorage"
        f" with another name, or set the label {Label.STORAGE}={name} on the PVC to adopt it",
    )


def pvc_lost(observed: ObservedStorage) -> StorageReadiness | None:
    """Report a deleted PVC that had a volume. The controller must not replace the lost data with an empty volume."""
    if observed.pvc is not None or not _was_provisioned(observed):
        return None
    return _failed(
        ReadyReason.CLAIM_LOST,
        f"PersistentVolumeClaim {observed.storage.metadata.name} was deleted by another client, and its data is lost:"
        " restore the PVC, or delete this GPUStorage and create it again",
    )


def pvc_deleting(observed: ObservedStorage) -> StorageReadiness | None:
    if observed.pvc is None or observed.pvc.metadata.deletion_timestamp is None:
        return None
    name = observed.storage.metadata.name
    if not _was_provisioned(observed):
        text = f"PersistentVolumeClaim {name} of a deleted GPUStorage still exists: waiting until the PVC is deleted"
        return StorageReadiness(StoragePhase.PENDING, ReadyReason.CLAIM_PENDING, text)
    return _failed(
        ReadyReason.CLAIM_LOST,
        f"another client has deleted PersistentVolumeClaim {name}: copy its data now, because the data is lost when"
        " the last pod that mounts the PVC terminates",
    )


def pvc_incompatible(observed: ObservedStorage) -> StorageReadiness | None:
    """Report an adopted PVC that differs from the spec in a field that Kubernetes does not allow to change."""
    if observed.pvc is None:
        return None
    actual, desired_class = observed.pvc.spec, observed.storage.spec.storage_class_name
    if (actual.storage_class_name or "") != desired_class:
        conflict = f"has StorageClass {actual.storage_class_name or 'none'} instead of {desired_class}"
    elif ACCESS_MODE not in actual.access_modes:
        conflict = f"does not allow access mode {ACCESS_MODE}"
    else:
        return None
    return _failed(
        ReadyReason.CLAIM_SYNC_FAILED,
        f"PersistentVolumeClaim {observed.storage.metadata.name} {conflict}, and Kubernetes does not allow a change"
        " of this field: create a GPUStorage with another name, or delete the PVC",
    )


STORAGE_RULES: Sequence[StorageRule] = (invalid_spec, pvc_name_conflict, pvc_lost, pvc_deleting, pvc_incompatible)


def first_violation(rules: Sequence[StorageRule], observed: ObservedStorage) -> StorageReadiness | None:
    return next((violation for rule in rules if (violation := rule(observed))), None)


def _was_provisioned(observed: ObservedStorage) -> bool:
    return observed.storage.status.capacity is not None


def _failed(reason: ReadyReason, message: str) -> StorageReadiness:
    return StorageReadiness(StoragePhase.FAILED, reason, message)
