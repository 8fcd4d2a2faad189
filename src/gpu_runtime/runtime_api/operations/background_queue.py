"""Executes operations in the background, after the API has answered their requests with 202.

The queue is in memory only. If the process ends before an operation is finished, the recovery of any replica resumes
the operation from its Operation object.
"""

import asyncio
import contextlib
import logging

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.runtime_api.operations.state_machine import OperationExecutors

logger = logging.getLogger(__name__)


class BackgroundQueue:
    def __init__(
        self, executors: OperationExecutors, *, max_concurrent_operations: int = 4, max_queued: int = 256
    ) -> None:
        self._executors = executors
        self._max_concurrent_operations = max_concurrent_operations
        self._max_queued = max_queued
        self._queue: asyncio.Queue[Operation | None] = asyncio.Queue()
        self._pending_uids: set[str] = set()
        """UIDs of operations that are queued or running. A repeated request does not start such an operation again."""

    def enqueue(self, operation: Operation) -> None:
        """Queue the operation. If the queue is full, recovery executes the operation later."""
        if operation.metadata.uid in self._pending_uids:
            return
        if self._queue.qsize() >= self._max_queued:
            logger.warning("operation queue full: recovery will resume the operation", extra=_log_fields(operation))
            return
        self._pending_uids.add(operation.metadata.uid)
        self._queue.put_nowait(operation)

    async def run(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Execute operations until `stopping` is set. Running operations then have `grace_seconds` to
        finish."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as shutdown_timeout, asyncio.TaskGroup() as tasks:
                for _ in range(self._max_concurrent_operations):
                    tasks.create_task(self._process_queue(stopping))
                await stopping.wait()
                for _ in range(self._max_concurrent_operations):
                    self._queue.put_nowait(None)
                shutdown_timeout.reschedule(asyncio.get_running_loop().time() + grace_seconds)

    async def _process_queue(self, stopping: asyncio.Event) -> None:
        while (operation := await self._queue.get()) is not None and not stopping.is_set():
            try:
                await self._resume(operation)
            finally:
                self._pending_uids.discard(operation.metadata.uid)

    async def _resume(self, operation: Operation) -> None:
        try:
            finished = await self._executors[OperationType(operation.spec.type)].resume(operation)
        except (KubeError, RuntimeFault) as error:
            logger.warning(
                "operation step failed: recovery will resume the operation",
                extra={**_log_fields(operation), "error": str(error)},
            )
        except Exception:  # an unexpected error in one operation must not stop the others
            logger.exception(
                "operation step raised an unexpected exception: recovery will resume the operation",
                extra=_log_fields(operation),
            )
        else:
            logger.info("operation finished", extra={**_log_fields(finished), "state": finished.status.state})


def _log_fields(operation: Operation) -> dict[str, object]:
    return {"operation_id": operation.spec.operation_id, "operation_type": operation.spec.type}
