"""Work on operations that goes on after their request was answered. Nothing here needs to survive: what a process does
not finish is in the record, and whoever finds it there goes on with it."""

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
        self, drivers: OperationExecutors, *, max_concurrent_operations: int = 4, max_queued: int = 256
    ) -> None:
        self._executors = drivers
        self._max_concurrent_operations = max_concurrent_operations
        self._max_queued = max_queued
        self._queue: asyncio.Queue[Operation | None] = asyncio.Queue()
        self._pending_uids: set[str] = set()
        """UIDs of operations that wait or are worked on: a caller who repeats itself starts nothing twice."""

    def enqueue(self, operation: Operation) -> None:
        """Work on it soon. What finds no place is left to the sweep, which is later but never forgets."""
        if operation.metadata.uid in self._pending_uids:
            return
        if self._queue.qsize() >= self._max_queued:
            logger.warning("too much waits already, left to the sweep", extra=_log_fields(operation))
            return
        self._pending_uids.add(operation.metadata.uid)
        self._queue.put_nowait(operation)

    async def run(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Work until the event is set; what is in progress then has the grace, in seconds, to come to its end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._max_concurrent_operations):
                    tasks.create_task(self._process_queue(stopping))
                await stopping.wait()
                for _ in range(self._max_concurrent_operations):
                    self._queue.put_nowait(None)
                limit.reschedule(asyncio.get_running_loop().time() + grace_seconds)

    async def _process_queue(self, stopping: asyncio.Event) -> None:
        while (operation := await self._queue.get()) is not None and not stopping.is_set():
            try:
                await self._resume(operation)
            finally:
                self._pending_uids.discard(operation.metadata.uid)

    async def _resume(self, operation: Operation) -> None:
        try:
            ended = await self._executors[OperationType(operation.spec.type)].resume(operation)
        except (KubeError, RuntimeFault) as error:
            logger.warning("left to the sweep", extra={**_log_fields(operation), "error": str(error)})
        except Exception:  # a bug met by one operation must not stop the others
            logger.exception("an operation crashed", extra=_log_fields(operation))
        else:
            logger.info("an operation ended", extra={**_log_fields(ended), "state": ended.status.state})


def _log_fields(operation: Operation) -> dict[str, object]:
    return {"operationID": operation.spec.operation_id, "type": operation.spec.type}
