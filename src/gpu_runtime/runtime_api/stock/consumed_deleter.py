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
from gpu_runtime.kube.client import Client
from gpu_runtime.kube.meta import Key
from gpu_runtime.runtime_api.api_informers import Caches

logger = logging.getLogger(__name__)


class ConsumedStock:
    def __init__(self, client: Client, caches: Caches, *, at_once: int = 4, waiting: int = 256) -> None:
        self._client = client
        self._caches = caches
        self._at_once = at_once
        self._waiting = waiting
        self._queue: asyncio.Queue[SourceStock | None] = asyncio.Queue()

    def clear(self, stock: SourceStock) -> None:
        """Delete it soon. What finds no place is left to the sweep, which is later but never forgets."""
        if self._queue.qsize() >= self._waiting:
            logger.warning("too much waits already, left to the sweep", extra=_extra(stock))
            return
        self._queue.put_nowait(stock)

    async def run(self, stopping: asyncio.Event, grace: float) -> None:
        """Work until the event is set; what waits then, too, has the grace, in seconds, to be deleted."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(None) as limit, asyncio.TaskGroup() as tasks:
                for _ in range(self._at_once):
                    tasks.create_task(self._work())
                await stopping.wait()
                for _ in range(self._at_once):
                    self._queue.put_nowait(None)  # behind all that waits
                limit.reschedule(asyncio.get_running_loop().time() + grace)

    async def _work(self) -> None:
        while (stock := await self._queue.get()) is not None:
            try:
                await self._delete(stock)
            except kube.KubeError as error:
                logger.warning("left to the sweep", extra={**_extra(stock), "error": str(error)})

    async def _delete(self, stock: SourceStock) -> None:
        key = Key(stock.namespace, stock.name)
        with contextlib.suppress(kube.NotFound, kube.Conflict):  # it is gone, and one of its name is another one
            await self._client.delete(GPU_UNITS, key, uid=stock.uid)
        self._caches.units.forget(key, stock.uid)


def _extra(stock: SourceStock) -> dict[str, object]:
    return {"stock": f"{stock.namespace}/{stock.name}", "uid": stock.uid}
