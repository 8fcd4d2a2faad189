"""How an operation is driven to its end, from whatever state somebody left it in.

Any number of replicas may drive the same operation at once: every step writes the record conditionally, and whoever
loses that race reads the record again and goes on from there.

    Accepted ─▶ Running ─make─▶ … ─make─▶ Succeeded
                   └─ refused for good ─▶ RollingBack ─undo─▶ Failed
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
        """Drive an operation to its end. Raises where it can go no further now; another try may go on."""
        ...


OperationExecutors = Mapping[OperationType, OperationExecutor]


@dataclass(frozen=True)
class OperationStateMachine:
    """The states that operations of operators have in common; what is made, and how it is undone, is their own."""

    operation_store: OperationStore
    create_objects: Callable[[Operation], Awaitable[Operation]]
    """Makes all or a part, and writes that down. A contract Conflict, too, means that it can never be made."""
    delete_objects: Callable[[Operation], Awaitable[None]]
    """Removes all that this operation made."""

    async def resume(self, operation: Operation) -> Operation:
        lost = 0
        while not is_finished(operation.status):
            try:
                operation = await self._step(operation)
            except kube.KubeConflict:
                lost += 1
                await asyncio.sleep(_CONFLICT_BACKOFF.delay(lost))
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
        except Conflict as refused:
            return await self.operation_store.mark_rolling_back(operation, refused)

    async def _reload(self, operation: Operation) -> Operation:
        found = await self.operation_store.find(operation.spec.operation_id)
        if found is None or found.metadata.uid != operation.metadata.uid:
            raise Unavailable(f"the record of operation {operation.spec.operation_id} is gone; send the request again")
        return found
