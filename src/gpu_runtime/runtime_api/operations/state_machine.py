"""How an operation is driven to its end, from whatever state somebody left it in.

Any number of replicas may drive the same operation at once: every step writes the record conditionally, and whoever
loses that race reads the record again and goes on from there.

    Accepted ─▶ Running ─make─▶ … ─make─▶ Succeeded
                   └─ refused for good ─▶ GivingUp ─undo─▶ Failed
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.contract.crd.operation import Operation, OperationState, OperationType
from gpu_runtime.contract.errors import Conflict, Unavailable
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.retry import Backoff
from gpu_runtime.runtime_api.kube_error_mapping import refuses_for_good, translated
from gpu_runtime.runtime_api.operations.operation_store import Ledger, is_finished

_APART = Backoff(first=0.01, longest=0.5, spread=0.5)


class Driver(Protocol):
    async def carry(self, operation: Operation) -> Operation:
        """Drive an operation to its end. Raises where it can go no further now; another try may go on."""
        ...


Drivers = Mapping[OperationType, Driver]


@dataclass(frozen=True)
class Steps:
    """The states that operations of operators have in common; what is made, and how it is undone, is their own."""

    ledger: Ledger
    make: Callable[[Operation], Awaitable[Operation]]
    """Makes all or a part, and writes that down. A contract Conflict, too, means that it can never be made."""
    undo: Callable[[Operation], Awaitable[None]]
    """Removes all that this operation made."""

    async def carry(self, operation: Operation) -> Operation:
        lost = 0
        while not is_finished(operation.status):
            try:
                operation = await self._step(operation)
            except kube.Conflict:
                lost += 1
                await asyncio.sleep(_APART.delay(lost))
                operation = await self._latest(operation)
        return operation

    async def _step(self, operation: Operation) -> Operation:
        match OperationState(operation.status.state):
            case OperationState.ACCEPTED:
                return await self.ledger.start(operation)
            case OperationState.GIVING_UP:
                await self.undo(operation)
                return await self.ledger.fail(operation, stock_uids=())
        try:
            return await self.make(operation)
        except kube.KubeError as error:
            if not refuses_for_good(error):
                raise
            return await self.ledger.give_up(operation, translated(error))
        except Conflict as refused:
            return await self.ledger.give_up(operation, refused)

    async def _latest(self, operation: Operation) -> Operation:
        found = await self.ledger.find(operation.spec.operation_id)
        if found is None or found.metadata.uid != operation.metadata.uid:
            raise Unavailable(f"the record of operation {operation.spec.operation_id} is gone; send the request again")
        return found
