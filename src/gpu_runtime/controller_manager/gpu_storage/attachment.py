"""Who holds a storage, decided from what was seen. Pure.

An attachment is released when nothing mounts the claim any more and the unit that it names is gone or names the storage
no longer. A stopped unit keeps its storages: it must find them when it is started again.
"""

from dataclasses import dataclass
from datetime import timedelta

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.controller_manager.gpu_storage.observe import Observed
from gpu_runtime.kube.meta import moment_of

GRACE = timedelta(seconds=3)
"""How long an attachment may wait until its unit, which is there, names the storage: an update of a unit attaches what
it is about to mount. Counted from when the status first told of it."""


@dataclass(frozen=True)
class Keep:
    """As it is: what would change that is heard of."""


@dataclass(frozen=True)
class Attach:
    """Nobody holds it, and this unit is the first that wants it."""

    unit: str


@dataclass(frozen=True)
class Release:
    """Nobody needs it any more."""

    unit: str


@dataclass(frozen=True)
class AskOperation:
    """The unit is not there. Whether it may still come, only the operation that attached the storage knows."""

    operation_id: str
    unit: str


@dataclass(frozen=True)
class LookAgain:
    """Too early to tell."""

    seconds: float


Step = Keep | Attach | Release | AskOperation | LookAgain


def next_step(seen: Observed) -> Step:
    attached = seen.attached
    if attached is None:
        return Attach(seen.claimants[0].metadata.name) if seen.claimants else Keep()
    if is_wanted(seen) or seen.mounted_in:
        return Keep()
    if seen.pods_trouble:
        return LookAgain(1.0)
    if attached.operation_id and not _was_made(seen, attached.operation_id):
        return AskOperation(attached.operation_id, attached.unit)
    if seen.holder is not None and not _is_old(seen):
        return LookAgain(GRACE.total_seconds())
    return Release(attached.unit)


def is_wanted(seen: Observed) -> bool:
    """Whether the unit that holds the storage is there, and still names it."""
    return seen.holder is not None and mounts(seen.holder, seen.storage.metadata.name)


def mounts(unit: GPUUnit, storage: str) -> bool:
    return any(mount.name == storage for mount in unit.spec.storage_mounts)


def _was_made(seen: Observed, operation_id: str) -> bool:
    """Whether the unit that the operation attached the storage for is there."""
    unit = seen.holder
    return unit is not None and unit.metadata.annotations.get(Annotation.OPERATION_ID) == operation_id


def _is_old(seen: Observed) -> bool:
    status = seen.storage.status
    if seen.attached is None or status.mounted_by != seen.attached.unit or status.last_sync_time is None:
        return False
    written = moment_of(status.last_sync_time)
    # What is far in the future was written by nobody who could tell: it would be too early for ever.
    return written is None or abs(seen.now - written) >= GRACE
