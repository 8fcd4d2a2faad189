"""Decides the next step of a handoff from the Operation and the objects that were observed. Pure: nothing awaits here.

`decide` has one case for each row of the table "Operation states" in docs/architecture.md. It trusts cached objects as
long as the handoff can proceed, because every write has a precondition. It asks for a live read before it refuses the
request or gives up a stock unit. So a handoff whose cache is right reads nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_runtime.contract.crd.gpu_storage import Attachment, GPUStorage
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.operation import Operation, OperationTarget, SourceStock
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import AlreadyExists, NoStock, RuntimeFault
from gpu_runtime.contract.operation_rules import (
    AttachState,
    Ownership,
    Seeding,
    StockState,
    attach_fault,
    attach_state,
    is_attached_by,
    is_rolling_back,
    ownership,
    stock_state,
)
from gpu_runtime.contract.operation_transitions import Committed, RolledBack, StockSelected, Transition, rollback
from gpu_runtime.contract.prepared_pods import is_free
from gpu_runtime.contract.recorded_requests import RecordedUnitRequest
from gpu_runtime.contract.request_hash import canonical_request
from gpu_runtime.contract.stock_grades import StockGrade, StockMiss
from gpu_runtime.kube.builtin_kinds import Pod

UNIT, STOCK = "unit", "stock"
"""What a live read can read, besides storages."""


@dataclass(frozen=True)
class ObservedHandoff:
    """The objects that a handoff depends on. They come from the cache, except those in `live`."""

    unit: GPUUnit | None = None
    """The unit with the requested name."""
    stock: GPUUnit | Pod | None = None
    """The stock unit, or the prepared pod, of the current attempt."""
    storages: Mapping[str, GPUStorage | None] = field(default_factory=dict)
    """The storages to mount, by name."""
    offer: SourceStock | None = None
    """The stock that this run holds for the next attempt."""
    missed: Mapping[StockGrade, StockMiss] | None = None
    """Why the stock selector found no stock of any grade. None if it was not asked, or found stock."""
    rejection: RuntimeFault | None = None
    """Why the cluster rejects the unit permanently."""
    live: frozenset[str] = frozenset()
    """The objects that were read from the API server or written in this step: UNIT, STOCK and names of storages."""


@dataclass(frozen=True)
class ReadLive:
    """Read the unit, the stock unit or this storage from the API server."""

    subject: str


@dataclass(frozen=True)
class HoldStock:
    """Hold stock for the next attempt."""


@dataclass(frozen=True)
class WriteAttachment:
    """Attach the storage to the holder, or detach it if the holder is None."""

    name: str
    storage: GPUStorage
    holder: Attachment | None


@dataclass(frozen=True)
class WriteClaim:
    """Set the claim on the stock unit or prepared pod."""

    stock: GPUUnit | Pod


@dataclass(frozen=True)
class ReleaseStock:
    """Release the claim of the stock unit, or delete the claimed pod, which cannot return to its pool."""

    stock: GPUUnit | Pod


@dataclass(frozen=True)
class CreateActiveUnit:
    """Create the unit, or read the existing unit with its name."""

    stock: SourceStock


@dataclass(frozen=True)
class DeleteUnit:
    """Delete the unit that this operation created and will never commit to."""

    unit: GPUUnit


@dataclass(frozen=True)
class ReadOperation:
    """Read the Operation again, because another replica has started a later attempt."""


@dataclass(frozen=True)
class RefuseRequest:
    """Report the fault to the caller. The same request may succeed later."""

    fault: RuntimeFault


@dataclass(frozen=True)
class StepBack:
    """Reset the operation, detach the storages of the attempt and report the fault. The same request may succeed
    later."""

    fault: RuntimeFault


HandoffAction = (
    Transition
    | ReadLive
    | HoldStock
    | WriteAttachment
    | WriteClaim
    | ReleaseStock
    | CreateActiveUnit
    | DeleteUnit
    | ReadOperation
    | RefuseRequest
    | StepBack
)


def decide(operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff) -> HandoffAction:
    stock = operation.effective_status.stock
    if is_rolling_back(operation):
        return _undo(operation, request, observed)
    if stock is None:
        return _select_stock(operation, request, observed)
    return (
        _attach(operation, request, observed)
        or _claim(operation, request, observed)
        or _create_and_commit(operation, stock, observed)
    )


def _select_stock(operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff) -> HandoffAction:
    if obstacle := _obstacle(operation, request, observed):
        return obstacle
    if observed.offer is not None:
        # The write that starts the first attempt of a waiting operation also records its request.
        return StockSelected(observed.offer, "" if operation.spec.request else canonical_request(request))
    if observed.missed is None:
        return HoldStock()
    return _refuse(operation, NoStock(no_stock_text(request.spec_name, observed.missed)))


def no_stock_text(spec_name: str, missed: Mapping[StockGrade, StockMiss]) -> str:
    reasons = "; ".join(f"{grade}: {miss}" for grade, miss in missed.items() if grade is not StockGrade.RESERVED)
    text = f"no Ready stock of {spec_name} is available; seed stock, or try again later"
    return f"{text} ({reasons})" if reasons else text


def _obstacle(
    operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff
) -> ReadLive | RefuseRequest | StepBack | None:
    """Return the refusal that can be decided without a write, or the live read that must precede it."""
    if observed.unit is not None and ownership(operation, observed.unit) is Ownership.FOREIGN:
        return _refuse(operation, _name_conflict(request)) if UNIT in observed.live else ReadLive(UNIT)
    for name in request.storage_names:
        storage, holder = observed.storages.get(name), attachment_of(operation)
        if attach_state(storage, holder) in (AttachState.IN_USE, AttachState.DELETED):
            fault = attach_fault(storage, name, holder)
            return _refuse(operation, fault) if name in observed.live else ReadLive(name)
    return None


def _refuse(operation: Operation, fault: RuntimeFault) -> RefuseRequest | StepBack:
    return RefuseRequest(fault) if operation.effective_status.stock is None else StepBack(fault)


def _attach(operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff) -> HandoffAction | None:
    holder = attachment_of(operation)
    for name in request.storage_names:
        storage = observed.storages.get(name)
        match attach_state(storage, holder):
            case AttachState.FREE if storage is not None:
                return WriteAttachment(name, storage, holder)
            case AttachState.NEWER:
                return ReadOperation()
            case AttachState.IN_USE | AttachState.DELETED if name not in observed.live:
                return ReadLive(name)
            case AttachState.IN_USE | AttachState.DELETED:
                return StepBack(attach_fault(storage, name, holder))
    return None


def _claim(operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff) -> HandoffAction | None:
    stock = observed.stock
    if stock is not None and is_claimed_by(stock, operation.spec.operation_id):
        return None
    if stock is not None and _is_claimable(stock):
        return WriteClaim(stock)
    return _select_stock(operation, request, observed) if STOCK in observed.live else ReadLive(STOCK)


def _is_claimable(stock: GPUUnit | Pod) -> bool:
    if isinstance(stock, Pod):
        return is_free(stock)
    # The seeding was checked when the stock unit was selected.
    return stock_state(stock, Seeding()) is StockState.FREE


def _create_and_commit(operation: Operation, stock: SourceStock, observed: ObservedHandoff) -> HandoffAction:
    if observed.rejection is not None:
        return rollback(observed.rejection)
    if observed.unit is None or UNIT not in observed.live:
        return CreateActiveUnit(stock)
    match ownership(operation, observed.unit):
        case Ownership.PENDING | Ownership.COMMITTED:
            return Committed((observed.unit.metadata.uid,))
        case Ownership.ORPHANED:
            return DeleteUnit(observed.unit)
        case Ownership.NEWER:
            return ReadOperation()
    return rollback(_name_conflict(operation.spec.target))


def _undo(operation: Operation, request: RecordedUnitRequest, observed: ObservedHandoff) -> HandoffAction:
    for subject in (UNIT, STOCK, *request.storage_names):
        if subject not in observed.live:
            return ReadLive(subject)
    if observed.unit is not None and ownership(operation, observed.unit) is Ownership.ORPHANED:
        return DeleteUnit(observed.unit)
    if observed.stock is not None and is_claimed_by(observed.stock, operation.spec.operation_id):
        return ReleaseStock(observed.stock)
    for name in request.storage_names:
        storage = observed.storages.get(name)
        if storage is not None and is_attached_by(storage, operation):
            return WriteAttachment(name, storage, None)
    return RolledBack()


def attachment_of(operation: Operation) -> Attachment:
    spec, uid = operation.spec, operation.metadata.uid
    attempt = operation.effective_status.attempt
    return Attachment(unit=spec.target.name, operation_id=spec.operation_id, operation_uid=uid, attempt=attempt)


def is_claimed_by(stock: GPUUnit | Pod, operation_id: str) -> bool:
    """Whether the operation has claimed the stock. A claimed pod that is being deleted is lost."""
    is_lost = isinstance(stock, Pod) and stock.metadata.deletion_timestamp is not None
    return stock.metadata.annotations.get(Annotation.CLAIMED_BY) == operation_id and not is_lost


def _name_conflict(named: RecordedUnitRequest | OperationTarget) -> AlreadyExists:
    return AlreadyExists(f"name: unit {named.name} already exists; choose another name")
