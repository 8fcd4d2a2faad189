"""Finds functions and their queues by requestID in the informer caches.

The caches lag behind the API server by the delay of their watches, usually milliseconds. A request for a function that
the caches lack waits for a short time, because another replica may just have created the function, and the controller
manager may not have created its queue yet.
"""

import asyncio
from dataclasses import dataclass

from gpu_runtime.contract.crd.function_queue import FunctionQueue
from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import function_queue_name
from gpu_runtime.contract.errors import NotFound, Unavailable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.meta import ObjectKey
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX
from gpu_runtime.runtime_api.settings import APINamespaceSettings

FUNCTION_LOOKUP_TIMEOUT_SECONDS = 0.25
"""Maximum wait for a function that the caches lack. After this time, the request fails."""
CACHE_POLL_INTERVAL_SECONDS = 0.025


@dataclass(frozen=True)
class FunctionLookup:
    units: Informer[GPUUnit]
    queues: Informer[FunctionQueue]
    namespaces: APINamespaceSettings

    def find_id(self, request_id: str) -> str | None:
        """Return the functionID of the function that owns the requestID, or None if the caches have no such function.

        A unit with the same requestID that does not own the queue gets no invocations.
        """
        queue = self._queue(request_id)
        if queue is None:
            return None
        owners = (unit for unit in self._functions(request_id) if unit.metadata.uid == queue.spec.function.uid)
        return next((queue.spec.function_id for _ in owners), None)

    async def resolve_id(self, request_id: str) -> str:
        """Return the functionID of the function that owns the requestID.

        Raise NotFound if no function has the requestID. Raise Unavailable if the function has no queue yet.
        """
        waited_seconds = 0.0
        while (function_id := self.find_id(request_id)) is None and waited_seconds < FUNCTION_LOOKUP_TIMEOUT_SECONDS:
            if not self.units.has_synced or not self.queues.has_synced:
                raise Unavailable("the list of functions is still loading; try again", retry_after=1)
            await asyncio.sleep(CACHE_POLL_INTERVAL_SECONDS)
            waited_seconds += CACHE_POLL_INTERVAL_SECONDS
        if function_id is not None:
            return function_id
        if not self._functions(request_id):
            raise NotFound(f"no function has the requestID {request_id!r}")
        raise Unavailable(
            f"the function with the requestID {request_id!r} has no queue yet; send the same request again",
            retry_after=1,
        )

    def _queue(self, request_id: str) -> FunctionQueue | None:
        return self.queues.store.get(ObjectKey(self.namespaces.system, function_queue_name(request_id)))

    def _functions(self, request_id: str) -> list[GPUUnit]:
        units = self.units.store.by_index(FUNCTION_INDEX, request_id)
        return [unit for unit in units if unit.metadata.namespace in self.namespaces.units]
