"""Stock that has become a unit, and is deleted after its create was answered.

Nothing here needs to survive: until it is deleted the stock is claimed, so nobody takes it, and its operation says that
it is consumed, so the sweep of any replica deletes what this process does not.
"""

import asyncio
import contextlib
import logging

from gpu_runtime.contract.crd.gpu_unit import GPU_UNITS
from gpu_runtime.contract.crd.operation import SourceStock
from gpu_runtime.kube import errors as kube
from gpu_runtime.kube.client import KubeClient
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import APIInformers

logger = logging.getLogger(__name__)


class ConsumedStockDeleter:
    def __init__(
        self, client: KubeClient, caches: APIInformers, *, max_concurrent_deletes: int = 4, max_queued: int = 256
    ) -> None:
        self._client = client
        self._informers = caches
        self._max_concurrent_deletes = max_concurrent_deletes
        self._max_queued = max_queued
        self._queue: asyncio.Queue[SourceStock | None] = asyncio.Queue()

    def enqueue(self, stock: SourceStock) -> None:
        """Delete it soon. What finds no place is left to the sweep, which is later but never forgets."""
        if self._queue.qsize() >= self._max_queued:
            logger.warning("too much waits already, left to the sweep", extra=_log_fields(stock))
            return
        self._queue.put_nowait(stock)

    async def run(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Work until the event is set; what waits then, too, has the grace, in seconds, to be deleted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._max_concurrent_deletes):
                    tasks.create_task(self._process_queue())
                await stopping.wait()
                for _ in range(self._max_concurrent_deletes):
                    self._queue.put_nowait(None)  # behind all that waits
                limit.reschedule(asyncio.get_running_loop().time() + grace_seconds)

    async def _process_queue(self) -> None:
        while (stock := await self._queue.get()) is not None:
            try:
                await self._delete(stock)
            except kube.KubeError as error:
                logger.warning("left to the sweep", extra={**_log_fields(stock), "error": str(error)})

    async def _delete(self, stock: SourceStock) -> None:
        key = ObjectKey(stock.namespace, stock.name)
        with contextlib.suppress(
            kube.KubeNotFound, kube.KubeConflict
        ):  # it is gone, and one of its name is another one
            await self._client.delete(GPU_UNITS, key, uid=stock.uid)
        self._informers.units.record_delete(key, stock.uid)


def _log_fields(stock: SourceStock) -> dict[str, object]:
    return {"stock": f"{stock.namespace}/{stock.name}", "uid": stock.uid}
