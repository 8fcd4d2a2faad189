"""Deletes consumed stock units in the background, after the API has answered the create request.

The queue is in memory and may be lost. A consumed stock unit stays claimed until it is deleted, so that no other
operation uses it. The Operation records that the stock unit is consumed. So the recovery of any replica can delete the
stock units that this process does not delete.
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
        self, client: KubeClient, informers: APIInformers, *, max_concurrent_deletes: int = 4, max_queued: int = 256
    ) -> None:
        self._client = client
        self._informers = informers
        self._max_concurrent_deletes = max_concurrent_deletes
        self._max_queued = max_queued
        self._queue: asyncio.Queue[SourceStock | None] = asyncio.Queue()

    def enqueue(self, stock: SourceStock) -> None:
        """Delete the stock unit soon. If the queue is full, recovery deletes it later."""
        if self._queue.qsize() >= self._max_queued:
            logger.warning(
                "queue of stock units to delete is full: recovery will delete the stock unit", extra=_log_fields(stock)
            )
            return
        self._queue.put_nowait(stock)

    async def run(self, stopping: asyncio.Event, grace_seconds: float) -> None:
        """Process the queue until `stopping` is set. Then empty the queue within at most `grace_seconds`."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._max_concurrent_deletes):
                    tasks.create_task(self._process_queue())
                await stopping.wait()
                for _ in range(self._max_concurrent_deletes):
                    self._queue.put_nowait(None)  # stops one task after all queued stock units
                limit.reschedule(asyncio.get_running_loop().time() + grace_seconds)

    async def _process_queue(self) -> None:
        while (stock := await self._queue.get()) is not None:
            try:
                await self._delete(stock)
            except kube.KubeError as error:
                logger.warning(
                    "stock unit deletion failed: recovery will delete the stock unit",
                    extra={**_log_fields(stock), "error": str(error)},
                )

    async def _delete(self, stock: SourceStock) -> None:
        key = ObjectKey(stock.namespace, stock.name)
        # NotFound: the stock unit is already deleted. Conflict: another unit has its name now.
        with contextlib.suppress(kube.KubeNotFound, kube.KubeConflict):
            await self._client.delete(GPU_UNITS, key, uid=stock.uid)
        self._informers.units.record_delete(key, stock.uid)


def _log_fields(stock: SourceStock) -> dict[str, object]:
    return {"namespace": stock.namespace, "object_name": stock.name, "uid": stock.uid}
