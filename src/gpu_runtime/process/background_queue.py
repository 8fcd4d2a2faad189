"""Executes work in the background, after the process has answered a request.

The queue is in memory only. Use it only for work that the recovery of any replica finds and does, if the process has
queued the work and not done it.
"""

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass

from gpu_runtime.contract.errors import RuntimeFault
from gpu_runtime.kube.errors import KubeError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class QueuedWork:
    key: str
    run: Callable[[], Awaitable[object]]
    log_fields: Mapping[str, object]


class BackgroundQueue:
    def __init__(self, *, max_concurrent: int = 4, max_queued: int = 256) -> None:
        self._max_concurrent = max_concurrent
        self._max_queued = max_queued
        self._queue: asyncio.Queue[QueuedWork | None] = asyncio.Queue()
        self.pending_keys: set[str] = set()
        """Keys of queued or running work. A repeated request does not start the same work again."""

    def enqueue(self, key: str, work: Callable[[], Awaitable[object]], log_fields: Mapping[str, object]) -> None:
        """Queue the work. If the queue is full, recovery does the work later."""
        if key in self.pending_keys:
            return
        if self._queue.qsize() >= self._max_queued:
            logger.warning("background queue is full; recovery will execute the task", extra=dict(log_fields))
            return
        self.pending_keys.add(key)
        self._queue.put_nowait(QueuedWork(key, work, log_fields))

    async def run(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Process the queue until `stopping` is set. Then empty the queue within at most `grace_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._max_concurrent):
                    tasks.create_task(self._process_queue())
                await stopping.wait()
                for _ in range(self._max_concurrent):
                    self._queue.put_nowait(None)  # stops one task after all queued work
                limit.reschedule(asyncio.get_running_loop().time() + grace_seconds)

    async def _process_queue(self) -> None:
        while (work := await self._queue.get()) is not None:
            try:
                await work.run()
            except (KubeError, RuntimeFault) as error:
                fields = {**work.log_fields, "error": str(error)}
                logger.warning("background task failed; recovery will repeat the task", extra=fields)
            except Exception:  # an unexpected error in one work item must not stop the others
                fields = dict(work.log_fields)
                logger.exception(
                    "background task raised an unexpected exception; recovery will repeat the task", extra=fields
                )
            finally:
                self.pending_keys.discard(work.key)
