"""The state machine of operations: every transition, and the only function that computes a new status. Pure.

A writer passes a transition to `next_status` and writes the result on the condition that the Operation has not changed.
So of two writers that decide differently, only one succeeds.

    Accepted ─StockSelected─▶ Running ─Committed─▶ Succeeded              CreateUnit
        ◀────────StockLost──────┘ └─RollbackStarted─▶ RollingBack ─RolledBack─▶ Failed
    Accepted ─CreationStarted─▶ Running ─StockSeeded─▶ Running ─Committed─▶ …     SeedStock, CreateStockPool
"""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from msgspec import structs

from gpu_runtime.contract.crd.operation import (
    OperationError,
    OperationState,
    OperationStatus,
    OperationType,
    SourceStock,
)
from gpu_runtime.contract.errors import RuntimeFault

ACCEPTED, RUNNING, ROLLING_BACK, SUCCEEDED, FAILED = OperationState
UNIT, SEED, POOL = OperationType.CREATE_UNIT, OperationType.SEED_STOCK, OperationType.CREATE_STOCK_POOL


@dataclass(frozen=True)
class CreationStarted:
    """A replica starts to create the objects of an operation that needs no stock."""


@dataclass(frozen=True)
class StockSelected:
    """The next attempt uses this stock unit."""

    stock: SourceStock
    request: str = ""
    """The request, if the spec of the operation does not contain it. Recovery needs it from now on."""


@dataclass(frozen=True)
class StockLost:
    """The attempt cannot continue, and no other attempt is possible now. The operation waits for its caller."""


@dataclass(frozen=True)
class StockSeeded:
    """A batch of stock units exists. A resumed seeding continues after them."""

    uids: tuple[str, ...]
    """The UIDs of all stock units that the seeding has created so far."""


@dataclass(frozen=True)
class Committed:
    """The operation commits to exactly these objects. After this write it cannot fail."""

    uids: tuple[str, ...]


@dataclass(frozen=True)
class RollbackStarted:
    """The objects can never be created. The replica deletes those that the operation created."""

    error: OperationError


@dataclass(frozen=True)
class RolledBack:
    """No object of the operation exists any more."""


Transition = CreationStarted | StockSelected | StockLost | StockSeeded | Committed | RollbackStarted | RolledBack


@dataclass(frozen=True)
class TransitionRule:
    """Which operations can make a transition, from which states, and the state after it."""

    types: tuple[OperationType, ...]
    sources: tuple[OperationState, ...]
    target: OperationState


TRANSITION_RULES: Mapping[type, TransitionRule] = MappingProxyType(
    {
        CreationStarted: TransitionRule((SEED, POOL), (ACCEPTED,), RUNNING),
        StockSelected: TransitionRule((UNIT,), (ACCEPTED, RUNNING), RUNNING),
        StockLost: TransitionRule((UNIT,), (RUNNING,), ACCEPTED),
        StockSeeded: TransitionRule((SEED,), (RUNNING,), RUNNING),
        Committed: TransitionRule((UNIT, SEED, POOL), (RUNNING,), SUCCEEDED),
        RollbackStarted: TransitionRule((UNIT, SEED, POOL), (RUNNING,), ROLLING_BACK),
        RolledBack: TransitionRule((UNIT, SEED, POOL), (ROLLING_BACK,), FAILED),
    }
)


class IllegalTransition(Exception):
    """The operation cannot make this transition from its state. This is a defect of the caller."""


def next_status(kind: OperationType, status: OperationStatus, transition: Transition, now: str) -> OperationStatus:
    """Return the status after the transition. `status` is the effective status, and `now` is a timestamp.

    Raises IllegalTransition.
    """
    rule = TRANSITION_RULES[type(transition)]
    if kind not in rule.types or OperationState(status.state) not in rule.sources:
        raise IllegalTransition(f"{kind} in state {status.state} cannot make {transition}")
    after = structs.replace(status, state=rule.target.value)
    match transition:
        case CreationStarted():
            after = structs.replace(after, started_at=now)
        case StockSelected(stock, request):
            attempt = status.attempt + 1
            after = structs.replace(after, stock=stock, request=request, attempt=attempt, started_at=now)
        case StockLost():
            after = structs.replace(after, stock=None, request="")
        case StockSeeded(uids):
            after = structs.replace(after, stock_uids=_extended(status, uids))
        case Committed(uids):
            after = structs.replace(_commit(kind, after, uids), finished_at=now)
        case RollbackStarted(error):
            after = structs.replace(after, error=error)
        case RolledBack():
            after = structs.replace(after, stock_uids=(), finished_at=now)
    return after


def _commit(kind: OperationType, status: OperationStatus, uids: tuple[str, ...]) -> OperationStatus:
    if kind is SEED:
        return structs.replace(status, stock_uids=_extended(status, uids))
    if len(uids) != 1 or (kind is UNIT and status.stock is None):
        raise IllegalTransition(f"{kind} cannot commit to {uids} with stock {status.stock}")
    return structs.replace(status, target_uid=uids[0])


def _extended(status: OperationStatus, uids: tuple[str, ...]) -> tuple[str, ...]:
    """Return the UIDs. A seeding never drops a stock unit that it has recorded."""
    if uids[: len(status.stock_uids)] != status.stock_uids:
        raise IllegalTransition(f"the seeding has recorded {status.stock_uids} and cannot replace them by {uids}")
    return uids


def rollback(fault: RuntimeFault) -> RollbackStarted:
    """Return the transition of an operation whose objects can never be created because of this fault."""
    return RollbackStarted(OperationError(code=fault.code, message=fault.message[:4096]))
