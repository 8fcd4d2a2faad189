"""Decides the next step of a storage attachment: attach, keep, recheck or detach. No I/O.

A storage is detached if both conditions are true: no pod mounts its PersistentVolumeClaim, and the attached unit is
deleted or does not list the storage in spec.storageMounts. The storages of a stopped unit stay attached, so that the
unit can mount them when it starts again.
"""

from dataclasses import dataclass
from datetime import timedelta

from gpu_runtime.contract.crd.gpu_storage import Attachment
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.meta import parse_timestamp

ATTACHMENT_GRACE_PERIOD = timedelta(seconds=3)
"""Time for which an attachment stays if its unit exists but does not list the storage.

The grace period is necessary because an update of a unit attaches the storage first and then changes the unit. The
period begins with the status update that first reports the attachment.
"""


@dataclass(frozen=True)
class KeepAttachment:
    """Change nothing. No requeue is necessary, because every relevant change triggers a reconcile."""


@dataclass(frozen=True)
class AttachStorage:
    """Attach a free storage to the first of the units that list it in spec.storageMounts."""

    unit: str


@dataclass(frozen=True)
class DetachStorage:
    """Detach the storage, because neither its unit nor any pod uses it."""

    unit: str


@dataclass(frozen=True)
class CheckOperation:
    """Read the operation that attached the storage, before the storage is detached.

    The unit of the operation does not exist. Only the state of the operation shows whether the operation can still
    create the unit.
    """

    attached: Attachment


@dataclass(frozen=True)
class RecheckAttachment:
    """Decide again after this number of seconds, because the necessary information is not available yet."""

    seconds: float


AttachmentStep = KeepAttachment | AttachStorage | DetachStorage | CheckOperation | RecheckAttachment


def next_attachment_step(observed: ObservedStorage) -> AttachmentStep:
    attachment = observed.attachment
    if attachment is None:
        candidates = observed.attach_candidates
        return AttachStorage(candidates[0].metadata.name) if candidates else KeepAttachment()
    if is_mounted_by_attached_unit(observed) or observed.mounted_by:
        return KeepAttachment()
    if observed.pod_cache_error:
        return RecheckAttachment(1.0)
    if attachment.operation_uid and not _unit_created_by(observed, attachment.operation_uid):
        return CheckOperation(attachment)
    if observed.attached_unit is not None and not _grace_period_elapsed(observed):
        return RecheckAttachment(ATTACHMENT_GRACE_PERIOD.total_seconds())
    return DetachStorage(attachment.unit)


def is_mounted_by_attached_unit(observed: ObservedStorage) -> bool:
    """Return whether the attached unit exists and lists the storage in spec.storageMounts."""
    return observed.attached_unit is not None and mounts_storage(observed.attached_unit, observed.storage.metadata.name)


def mounts_storage(unit: GPUUnit, storage: str) -> bool:
    return any(mount.name == storage for mount in unit.spec.storage_mounts)


def _unit_created_by(observed: ObservedStorage, operation_uid: str) -> bool:
    """Return whether the attached unit exists and is annotated with the UID of this operation."""
    unit = observed.attached_unit
    return unit is not None and unit.metadata.annotations.get(Annotation.OPERATION_UID) == operation_uid


def _grace_period_elapsed(observed: ObservedStorage) -> bool:
    status = observed.storage.status
    if observed.attachment is None or status.mounted_by != observed.attachment.unit or status.last_sync_time is None:
        return False
    written = parse_timestamp(status.last_sync_time)
    # abs: if the timestamp is wrong and far in the future, the grace period must elapse too.
    return written is None or abs(observed.now - written) >= ATTACHMENT_GRACE_PERIOD
