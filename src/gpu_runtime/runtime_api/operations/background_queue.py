"""Work on operations that goes on after their request was answered. Nothing here needs to survive: what a process does
not finish is in the record, and whoever finds it there goes on with it."""

import asyncio
import contextlib
import logging

from gpu_runtime.contract.crd.operation import Operation, OperationType
from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.kube.errors import KubeError
from gpu_runtime.runtime_api.operations.state_machine import Drivers

logger = logging.getLogger(__name__)


class Workers:
    def __init__(self, drivers: Drivers, *, at_once: int = 4, waiting: int = 256) -> None:
        self._drivers = drivers
        self._at_once = at_once
        self._waiting = waiting
        self._queue: asyncio.Queue[Operation | None] = asyncio.Queue()
        self._held: set[str] = set()
        """UIDs of operations that wait or are worked on: a caller who repeats itself starts nothing twice."""

    def begin(self, operation: Operation) -> None:
        """Work on it soon. What finds no place is left to the sweep, which is later but never forgets."""
        if operation.metadata.uid in self._held:
            return
        if self._queue.qsize() >= self._waiting:
            logger.warning("too much waits already, left to the sweep", extra=_extra(operation))
            return
        self._held.add(operation.metadata.uid)
        self._queue.put_nowait(operation)

    async def run(self, stopping: asyncio.Event, grace: float) -> None:
        """Work until the event is set; what is in progress then has the grace, in seconds, to come to its end."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._at_once):
                    tasks.create_task(self._work(stopping))
                await stopping.wait()
                for _ in range(self._at_once):
                    self._queue.put_nowait(None)
                limit.reschedule(asyncio.get_running_loop().time() + grace)

    async def _work(self, stopping: asyncio.Event) -> None:
        while (operation := await self._queue.get()) is not None and not stopping.is_set():
            try:
                await self._carry(operation)
            finally:
                self._held.discard(operation.metadata.uid)

    async def _carry(self, operation: Operation) -> None:
        try:
            ended = await self._drivers[OperationType(operation.spec.type)].carry(operation)
        except (KubeError, RuntimeFault) as error:
            logger.warning("left to the sweep", extra={**_extra(operation), "error": str(error)})
        except Exception:  # a bug met by one operation must not stop the others
            logger.exception("an operation crashed", extra=_extra(operation))
        else:
            logger.info("an operation ended", extra={**_extra(ended), "state": ended.status.state})


def _extra(operation: Operation) -> dict[str, object]:
    return {"operationID": operation.spec.operation_id, "type": operation.spec.type}
