"""Decides the next step of a seeding. Pure: nothing awaits here.

A seeding creates all of its stock units, or none. It records the UIDs after every batch, so that a resumed seeding
continues after the last batch.
"""

from dataclasses import dataclass

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.contract.operation_rules import is_accepted, is_rolling_back
from gpu_runtime.contract.operation_transitions import (
    Committed,
    CreationStarted,
    RolledBack,
    StockSeeded,
    Transition,
    rollback,
)
from gpu_runtime.contract.recorded_requests import RecordedSeedRequest

SEED_BATCH_SIZE = 100
"""Maximum number of stock units that are created between two status updates of the Operation."""


@dataclass(frozen=True)
class ObservedSeeding:
    """The outcome of the batch that this step created or deleted."""

    created_uids: tuple[str, ...] = ()
    rejection: RuntimeFault | None = None
    """Why the stock units can never be created."""
    is_undone: bool = False
    """Whether this step has deleted all stock units of the operation."""


@dataclass(frozen=True)
class CreateStock:
    """Create the stock units with these indexes, or find those that this operation created before."""

    indexes: range


@dataclass(frozen=True)
class DeleteStock:
    """Delete the stock units with these indexes that this operation created."""

    indexes: range


SeedAction = Transition | CreateStock | DeleteStock


def decide_seeding(operation: Operation, request: RecordedSeedRequest, observed: ObservedSeeding) -> SeedAction:
    if is_accepted(operation):
        return CreationStarted()
    if is_rolling_back(operation):
        return RolledBack() if observed.is_undone else DeleteStock(range(request.replicas))
    if observed.rejection is not None:
        return rollback(observed.rejection)
    recorded = operation.status.stock_uids
    if not observed.created_uids:
        return CreateStock(range(len(recorded), min(len(recorded) + SEED_BATCH_SIZE, request.replicas)))
    uids = (*recorded, *observed.created_uids)
    return StockSeeded(uids) if len(uids) < request.replicas else Committed(uids)
