"""Decides the next step of an operation that creates a pool. Pure: nothing awaits here."""

from dataclasses import dataclass

from gpu_runtime.contract.crd.operation import Operation
from gpu_runtime.contract.crd.stock_pool import StockPool
from gpu_runtime.contract.errors import AlreadyExists, RuntimeFault
from gpu_runtime.contract.operation_rules import Ownership, is_accepted, is_rolling_back, ownership
from gpu_runtime.contract.operation_transitions import Committed, CreationStarted, RolledBack, Transition, rollback
from gpu_runtime.kube.meta import ObjectKey


@dataclass(frozen=True)
class ObservedPoolCreation:
    pool: StockPool | None = None
    """The pool with the requested name."""
    is_live: bool = False
    """Whether the pool was read or created in this step."""
    rejection: RuntimeFault | None = None
    """Why the pool can never be created."""


@dataclass(frozen=True)
class CreatePool:
    """Create the pool, or read the existing pool with its name."""


@dataclass(frozen=True)
class ReadPool:
    """Read the pool from the API server."""


@dataclass(frozen=True)
class DeletePool:
    """Delete the pool that this operation created."""

    pool: StockPool


PoolAction = Transition | CreatePool | ReadPool | DeletePool


def decide_pool(operation: Operation, observed: ObservedPoolCreation) -> PoolAction:
    if is_accepted(operation):
        return CreationStarted()
    if is_rolling_back(operation):
        return _undo(operation, observed)
    if observed.rejection is not None:
        return rollback(observed.rejection)
    if observed.pool is None:
        return CreatePool()
    if ownership(operation, observed.pool) is Ownership.FOREIGN:
        return rollback(pool_name_conflict(observed.pool.metadata.key))
    return Committed((observed.pool.metadata.uid,))


def _undo(operation: Operation, observed: ObservedPoolCreation) -> PoolAction:
    if not observed.is_live:
        return ReadPool()
    if observed.pool is not None and ownership(operation, observed.pool) is Ownership.ORPHANED:
        return DeletePool(observed.pool)
    return RolledBack()


def pool_name_conflict(key: ObjectKey) -> AlreadyExists:
    return AlreadyExists(f"name: pool {key} already exists and belongs to another request; choose another name")
