"""Drives operations: executes the steps of an operation, from any state, until it is finished.

Several replicas may drive the same operation at the same time. Every step writes the status with optimistic
concurrency. If the write conflicts, the replica reads the operation again and continues from its new state.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Protocol

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.errors import Conflict, Unavailable
from gpu_runtime.contract.operation_rules import OperationProgress, Ownership, is_finished, ownership, progress_of
from gpu_runtime.kube.errors import KubeConflict
from gpu_runtime.kube.live_objects import CONFLICT_BACKOFF
from gpu_runtime.kube.meta import KubeObject
from gpu_runtime.process.background_queue import BackgroundQueue
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.operations.operation_store import OperationStore

logger = logging.getLogger(__name__)

MAX_CONFLICTS = 20
"""The maximum number of conflicts before the replica stops. A repeated request or recovery resumes the operation."""

Step = Callable[[Operation], Awaitable[Operation]]
"""Makes one transition and returns the operation after it. Raises a fault if the operation cannot proceed now."""


class StaleAttempt(Exception):
    """This process has read an operation that is now stale: another replica has started a later attempt.

    Read the operation again.
    """


@dataclass(frozen=True)
class OperationDriver:
    store: OperationStore
    clock: Clock

    async def drive(self, operation: Operation, step: Step) -> Operation:
        """Execute steps until the operation is finished."""
        conflicts = 0
        while not is_finished(operation):
            try:
                operation = await step(operation)
            except (KubeConflict, StaleAttempt) as conflict:
                conflicts += 1
                if conflicts > MAX_CONFLICTS:
                    id_ = operation.spec.operation_id
                    raise Unavailable(
                        f"other replicas change operation {id_}; send the same request again"
                    ) from conflict
                await self.clock.sleep(CONFLICT_BACKOFF.delay(conflicts))
                operation = await self.store.reload(operation)
        return operation


class OperationExecutor(Protocol):
    async def resume(self, operation: Operation) -> Operation:
        """Resume the operation until it is finished.

        Raises an error if the operation cannot proceed now. A later call can continue the operation.
        """
        ...


@dataclass(frozen=True)
class OperationRunner:
    """Resumes operations of every type, each with its executor."""

    store: OperationStore
    executors: Mapping[OperationType, OperationExecutor]
    queue: BackgroundQueue

    async def resume(self, operation: Operation) -> Operation:
        return await self.executors[OperationType(operation.spec.type)].resume(operation)

    def enqueue(self, operation: Operation) -> None:
        """Execute the operation in the background, after the response. Recovery resumes it if that fails."""
        fields = {"operation_id": operation.spec.operation_id, "operation_type": operation.spec.type}
        self.queue.enqueue(operation.metadata.uid, lambda: self._resume_in_background(operation, fields), fields)

    async def _resume_in_background(self, operation: Operation, fields: Mapping[str, object]) -> None:
        finished = await self.resume(operation)
        logger.info("operation finished", extra={**fields, "state": finished.status.state})

    async def finish_creator(self, created: KubeObject) -> list[str]:
        """Finish the operation that created the object, so that no replica creates it again after its deletion.

        Return the UIDs to delete. If a user has deleted the object meanwhile, the operation has created another one.
        """
        uids = {created.metadata.uid}
        operation_id = created.metadata.annotations.get(Annotation.OPERATION_ID, "")
        operation = await self.store.find(operation_id) if operation_id else None
        if operation is not None and ownership(operation, created) is not Ownership.FOREIGN:
            if progress_of(operation) is OperationProgress.IN_PROGRESS:
                with suppress(Conflict):  # the operation waits now: only a new request can resume it
                    operation = await self.resume(operation)
            uids.add(operation.status.target_uid or created.metadata.uid)
        return sorted(uids)
