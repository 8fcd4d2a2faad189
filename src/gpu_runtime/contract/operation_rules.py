"""The operation protocol: the rules by which all processes decide what an operation owns and needs. Pure.

An Operation makes a create request survive any crash. Any replica may execute any step of it at any time, so every
process decides from the objects alone, with the functions of this module:

    progress_of       waiting for its caller, in progress, or finished?
    ownership         does this object belong to this operation?
    claim_state       may this operation use this stock unit, and may the claim be released?
    attachment_state  does an operation still need this storage?
    attach_state      may this attempt attach this storage?
    stock_state       may a handoff claim this stock unit?

`operation_transitions` computes every new status.

An attempt is one stock unit that a CreateUnit operation tries to consume. Each attempt has a higher number than the one
before, so objects of earlier attempts are recognizable. SeedStock and CreateStockPool have no attempts.
"""

from dataclasses import dataclass
from enum import StrEnum

from msgspec import Struct, to_builtins

from gpu_runtime.contract.crd.conditions import UnitPhase
from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import AnyOperation, Operation, OperationState, OperationStatus, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import BeingDeleted, Conflict, StorageInUse
from gpu_runtime.kube.meta import KubeObject, Manifest, ObjectKey

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState


class OperationProgress(StrEnum):
    WAITING = "waiting"
    """A CreateUnit operation without stock. Only a repeated request resumes it. Retention may evict it."""
    IN_PROGRESS = "in progress"
    """Recovery resumes the operation, and no process may evict it."""
    FINISHED = "finished"


def progress_of(operation: AnyOperation) -> OperationProgress:
    status = operation.effective_status
    if OperationState(status.state).finished:
        return OperationProgress.FINISHED
    waits = operation.spec.type == OperationType.CREATE_UNIT and status.state == ACCEPTED and status.stock is None
    return OperationProgress.WAITING if waits else OperationProgress.IN_PROGRESS


def is_finished(operation: AnyOperation) -> bool:
    return progress_of(operation) is OperationProgress.FINISHED


def has_succeeded(operation: AnyOperation) -> bool:
    return operation.status.state == SUCCEEDED


def is_accepted(operation: AnyOperation) -> bool:
    return operation.effective_status.state == ACCEPTED


def is_rolling_back(operation: AnyOperation) -> bool:
    return operation.effective_status.state == ROLLING_BACK


class Ownership(StrEnum):
    FOREIGN = "foreign"
    """A user or another operation created the object. An evicted operation with the same operationID is another one."""
    ADOPTABLE = "adoptable"
    """The same request created the pool before, under an Operation that was evicted. The new Operation adopts it."""
    PENDING = "pending"
    """The current attempt created the object and may still commit to it."""
    COMMITTED = "committed"
    """The object is a result of the operation."""
    ORPHANED = "orphaned"
    """The operation created the object and will never commit to it: delete it."""
    NEWER = "newer"
    """A later attempt created the object than the one that this Operation shows: read the Operation again."""


def ownership(operation: Operation, found: KubeObject) -> Ownership:
    annotations, status = found.metadata.annotations, operation.effective_status
    is_undone = status.state in (ROLLING_BACK, FAILED)
    if status.has_created(found.metadata.uid) and not is_undone:
        return Ownership.COMMITTED
    if annotations.get(Annotation.OPERATION_UID) != operation.metadata.uid:
        return Ownership.ADOPTABLE if _is_same_pool_request(operation, found) else Ownership.FOREIGN
    if is_undone or status.state == SUCCEEDED:
        return Ownership.ORPHANED
    if operation.spec.type != OperationType.CREATE_UNIT:
        return Ownership.PENDING
    attempt = attempt_of(found)
    if _is_attempt_over(status, attempt):
        return Ownership.ORPHANED
    return Ownership.NEWER if attempt > status.attempt else Ownership.PENDING


def owned_manifest(operation: Operation, key: ObjectKey, spec: Struct, **annotations: str) -> Manifest:
    """Return the manifest of an object that the operation creates. Its annotations name the operation as its owner."""
    owner = {
        Annotation.OPERATION_ID: operation.spec.operation_id,
        Annotation.OPERATION_UID: operation.metadata.uid,
        Annotation.REQUEST_HASH: operation.spec.request_hash,
    }
    metadata = {"namespace": key.namespace, "name": key.name, "annotations": owner | annotations}
    return {"metadata": metadata, "spec": to_builtins(spec)}


def _is_same_pool_request(operation: Operation, found: KubeObject) -> bool:
    annotations, spec = found.metadata.annotations, operation.spec
    return (
        spec.type == OperationType.CREATE_STOCK_POOL
        and annotations.get(Annotation.OPERATION_ID) == spec.operation_id
        and annotations.get(Annotation.REQUEST_HASH) == spec.request_hash
    )


def attempt_of(created: KubeObject) -> int:
    """Return the number of the attempt that created the object, or 0 if its annotation is missing or invalid."""
    value = created.metadata.annotations.get(Annotation.OPERATION_ATTEMPT, "")
    return int(value) if value.isdecimal() and len(value) < 10 else 0


def _is_attempt_over(status: OperationStatus, attempt: int) -> bool:
    """Whether the attempt of an unfinished operation can never commit: a later one has started, or it lost its
    stock."""
    return attempt < status.attempt + (status.stock is None)


class ClaimState(StrEnum):
    VALID = "valid"
    """The operation is in progress and uses this stock unit."""
    CONSUMED = "consumed"
    """The operation has succeeded: the stock unit has become a unit. Delete the stock unit."""
    STALE = "stale"
    """The operation has failed, uses another stock unit, or does not exist. Release the claim."""


def claim_state(operation: Operation | None, stock_uid: str) -> ClaimState:
    selected = operation.effective_status.stock if operation is not None else None
    if operation is None or selected is None or selected.uid != stock_uid or operation.status.state == FAILED:
        return ClaimState.STALE
    return ClaimState.CONSUMED if has_succeeded(operation) else ClaimState.VALID


class AttachmentState(StrEnum):
    NEEDED = "needed"
    """The operation can still create the unit for which it attached the storage."""
    UNIT_DECIDES = "unit decides"
    """The operation has succeeded or was evicted. The storage stays attached while its unit lists it."""
    UNNEEDED = "unneeded"
    """The attempt that attached the storage will never create its unit. Detach the storage."""


def attachment_state(operation: Operation | None, attached: Attachment) -> AttachmentState:
    """Return whether the operation that attached a storage still needs it. `operation` has its operationID."""
    if operation is None or operation.metadata.uid != attached.operation_uid or has_succeeded(operation):
        return AttachmentState.UNIT_DECIDES
    is_over = operation.status.state == FAILED or _is_attempt_over(operation.effective_status, attached.attempt)
    return AttachmentState.UNNEEDED if is_over else AttachmentState.NEEDED


class AttachState(StrEnum):
    FREE = "free"
    """The holder may attach the storage, or must write its attachment again."""
    ATTACHED = "attached"
    """The storage is attached for this holder."""
    IN_USE = "in use"
    """Another unit has the storage."""
    DELETED = "deleted"
    """The storage does not exist, or is being deleted."""
    NEWER = "newer"
    """A later attempt of the same operation attached the storage: read the Operation again."""


def attach_state(storage: GPUStorage | None, holder: Attachment) -> AttachState:
    """Return whether the holder may attach the storage. A holder without an operation is an existing unit."""
    if storage is None or storage.metadata.deletion_timestamp is not None:
        return AttachState.DELETED
    attached = storage.spec.attached_to
    if attached is None:
        return AttachState.FREE
    if attached.unit != holder.unit or holder.operation_uid not in ("", attached.operation_uid):
        return AttachState.IN_USE
    if not holder.operation_uid:  # the write removes the operation that wanted the name of the unit
        return AttachState.FREE if attached.operation_uid else AttachState.ATTACHED
    if attached.attempt > holder.attempt:
        return AttachState.NEWER
    return AttachState.ATTACHED if attached.attempt == holder.attempt else AttachState.FREE


def attach_fault(storage: GPUStorage | None, name: str, holder: Attachment) -> Conflict:
    """Return why the holder may not attach the storage."""
    attached = storage.spec.attached_to if storage is not None else None
    if attach_state(storage, holder) is AttachState.DELETED or attached is None:
        return BeingDeleted(f"storage {name} {'was' if storage is None else 'is being'} deleted")
    unit = f"an earlier unit {attached.unit}" if attached.unit == holder.unit else f"unit {attached.unit}"
    return StorageInUse(f"storage {name} is attached to {unit}; only one unit at a time can mount it")


def is_attached_by(storage: GPUStorage, operation: Operation) -> bool:
    """Whether the current attempt of the operation, or an earlier attempt, attached the storage."""
    attached, attempt = storage.spec.attached_to, operation.effective_status.attempt
    return attached is not None and attached.operation_uid == operation.metadata.uid and attached.attempt <= attempt


@dataclass(frozen=True)
class Seeding:
    """What is known about the operation that created a stock unit."""

    is_running: bool = False
    uids: frozenset[str] | None = None
    """The UIDs of its stock units. None if the operation was evicted, or if an administrator created the stock unit."""


def seeding_of(operation: AnyOperation | None, operation_uid: str) -> Seeding:
    """Return the seeding with this UID. `operation` is the current Operation with its operationID, if there is one."""
    if operation is None or operation.metadata.uid != operation_uid:
        return Seeding()
    return Seeding(not is_finished(operation), frozenset(operation.status.stock_uids))


class StockState(StrEnum):
    FREE = "free"
    """A handoff may claim the stock unit."""
    CLAIMED = "claimed"
    NOT_READY = "not ready"
    """The stock unit is not Ready, or is being deleted."""
    RESERVED = "reserved"
    """Its seeding still runs, or does not list it. If a handoff consumed the stock unit now, the seeding would create
    it again."""


def stock_state(unit: GPUUnit, seeding: Seeding) -> StockState:
    if is_claimed(unit):
        return StockState.CLAIMED
    if unit.status.phase != UnitPhase.READY or unit.metadata.deletion_timestamp is not None:
        return StockState.NOT_READY
    is_listed = seeding.uids is None or unit.metadata.uid in seeding.uids
    return StockState.FREE if is_listed and not seeding.is_running else StockState.RESERVED


def is_claimed(unit: GPUUnit) -> bool:
    return Annotation.CLAIMED_BY in unit.metadata.annotations
