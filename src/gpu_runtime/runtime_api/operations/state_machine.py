"""The state machine of operations: resumes an operation from any state until it is finished.

Several replicas may resume the same operation at the same time. Every step writes the status with optimistic
concurrency. If the write conflicts, the replica reads the operation again and continues from its new state.

    Accepted ─▶ Running ─create─▶ … ─create─▶ Succeeded
                   └─ permanently rejected ─▶ RollingBack ─delete─▶ Failed
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.errors import Conflict, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.kube_error_mapping import fault_from_kube_error, is_permanent_rejection
from gpu_runtime.runtime_api.operations.operation_store import OperationStore, is_finished

_CONFLICT_BACKOFF = Backoff(initial_seconds=0.01, max_seconds=0.5, jitter=0.5)


class OperationExecutor(Protocol):
    async def resume(self, operation: Operation) -> Operation:
        """Resume the operation until it is finished.

        Raises an error if the operation cannot proceed now. A later call can continue the operation.
        """
        ...


OperationExecutors = Mapping[OperationType, OperationExecutor]


@dataclass(frozen=True)
class OperationStateMachine:
    """The state machine of SeedStock and CreateStockPool. Each of them supplies functions that create and delete its
    objects."""

    operation_store: OperationStore
    create_objects: Callable[[Operation], Awaitable[Operation]]
    """Creates all objects or some of them, and updates the status. Raises a Conflict of the contract if the objects can
    never be created."""
    delete_objects: Callable[[Operation], Awaitable[None]]
    """Deletes all objects that this operation created."""

    async def resume(self, operation: Operation) -> Operation:
        conflicts = 0
        while not is_finished(operation.status):
            try:
                operation = await self._step(operation)
            except kube.KubeConflict:
                conflicts += 1
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(conflicts))
                operation = await self._reload(operation)
        return operation

    async def _step(self, operation: Operation) -> Operation:
        match OperationState(operation.status.state):
            case OperationState.ACCEPTED:
                return await self.operation_store.mark_running(operation)
            case OperationState.ROLLING_BACK:
                await self.delete_objects(operation)
                return await self.operation_store.mark_failed(operation, stock_uids=())
        try:
            return await self.create_objects(operation)
        except kube.KubeError as error:
            if not is_permanent_rejection(error):
                raise
            return await self.operation_store.mark_rolling_back(operation, fault_from_kube_error(error))
        except Conflict as conflict:
            return await self.operation_store.mark_rolling_back(operation, conflict)

    async def _reload(self, operation: Operation) -> Operation:
        current = await self.operation_store.find(operation.spec.operation_id)
        if current is None or current.metadata.uid != operation.metadata.uid:
            raise Unavailable(f"operation {operation.spec.operation_id} was deleted; send the request again")
        return current
