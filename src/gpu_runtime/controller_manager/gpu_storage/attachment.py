"""Who holds a storage, decided from what was seen. Pure.

An attachment is released when nothing mounts the claim any more and the unit that it names is gone or names the storage
no longer. A stopped unit keeps its storages: it must find them when it is started again.
"""

from dataclasses import dataclass
from datetime import timedelta

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_storage.observe import ObservedStorage
from gpu_runtime.kube.meta import parse_timestamp

ATTACHMENT_GRACE_PERIOD = timedelta(seconds=3)
"""How long an attachment may wait until its unit, which is there, names the storage: an update of a unit attaches what
it is about to mount. Counted from when the status first told of it."""


@dataclass(frozen=True)
class KeepAttachment:
    """As it is: what would change that is heard of."""


@dataclass(frozen=True)
class AttachStorage:
    """Nobody holds it, and this unit is the first that wants it."""

    unit: str


@dataclass(frozen=True)
class DetachStorage:
    """Nobody needs it any more."""

    unit: str


@dataclass(frozen=True)
class CheckOperation:
    """The unit is not there. Whether it may still come, only the operation that attached the storage knows."""

    operation_id: str
    unit: str


@dataclass(frozen=True)
class RecheckAttachment:
    """Too early to tell."""

    seconds: float


AttachmentStep = KeepAttachment | AttachStorage | DetachStorage | CheckOperation | RecheckAttachment


def next_attachment_step(seen: ObservedStorage) -> AttachmentStep:
    attached = seen.attachment
    if attached is None:
        return AttachStorage(seen.attach_candidates[0].metadata.name) if seen.attach_candidates else KeepAttachment()
    if is_mounted_by_attached_unit(seen) or seen.mounted_by:
        return KeepAttachment()
    if seen.pod_cache_error:
        return RecheckAttachment(1.0)
    if attached.operation_id and not _unit_created_by(seen, attached.operation_id):
        return CheckOperation(attached.operation_id, attached.unit)
    if seen.attached_unit is not None and not _grace_period_elapsed(seen):
        return RecheckAttachment(ATTACHMENT_GRACE_PERIOD.total_seconds())
    return DetachStorage(attached.unit)


def is_mounted_by_attached_unit(seen: ObservedStorage) -> bool:
    """Whether the unit that holds the storage is there, and still names it."""
    return seen.attached_unit is not None and mounts_storage(seen.attached_unit, seen.storage.metadata.name)


def mounts_storage(unit: GPUUnit, storage: str) -> bool:
    return any(mount.name == storage for mount in unit.spec.storage_mounts)


def _unit_created_by(seen: ObservedStorage, operation_id: str) -> bool:
    """Whether the unit that the operation attached the storage for is there."""
    unit = seen.attached_unit
    return unit is not None and unit.metadata.annotations.get(Annotation.OPERATION_ID) == operation_id


def _grace_period_elapsed(seen: ObservedStorage) -> bool:
    status = seen.storage.status
    if seen.attachment is None or status.mounted_by != seen.attachment.unit or status.last_sync_time is None:
        return False
    written = parse_timestamp(status.last_sync_time)
    # What is far in the future was written by nobody who could tell: it would be too early for ever.
    return written is None or abs(seen.now - written) >= ATTACHMENT_GRACE_PERIOD
