"""Checks in the unit cache that a function with a given requestID exists.

The cache lags behind the API server by the delay of its watch, usually milliseconds. A request for a function that the
cache lacks waits for a short time, because another replica may just have created the function.
"""

import asyncio
from collections import defaultdict

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, function_request_ids
from gpu_runtime.contract.errors import DuplicateRequestID, NotFound, Unavailable
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.store import ObjectChange
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX
from gpu_runtime.runtime_api.settings import APINamespaceSettings

FUNCTION_LOOKUP_TIMEOUT_SECONDS = 0.25
"""Maximum wait for a function that the cache lacks. After this time, the request fails with NotFound."""


class FunctionLookup:
    def __init__(self, units: Informer[GPUUnit], namespaces: APINamespaceSettings) -> None:
        self._units, self._namespaces = units, namespaces
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        units.add_event_handler(self._on_change)

    async def must_exist(self, request_id: str) -> None:
        """Raise NotFound if no function has the requestID, and DuplicateRequestID if several have it."""
        units = self._cached_units(request_id)
        if not units:
            if not self._units.has_synced:
                raise Unavailable("the list of functions is still loading; try again", retry_after=1)
            await self._wait_for_change(request_id)
            units = self._cached_units(request_id)
        if not units:
            raise NotFound(f"no function has the requestID {request_id!r}")
        if len(units) > 1:
            names = " and ".join(sorted(str(unit.metadata.key) for unit in units))
            raise DuplicateRequestID(f"units {names} have the same requestID {request_id!r}; change one of them")

    def _cached_units(self, request_id: str) -> list[GPUUnit]:
        units = self._units.store.by_index(FUNCTION_INDEX, request_id)
        return [unit for unit in units if unit.metadata.namespace in self._namespaces.units]

    async def _wait_for_change(self, request_id: str) -> None:
        event = asyncio.Event()
        self._waiters[request_id].add(event)
        try:
            await is_set_within(event, FUNCTION_LOOKUP_TIMEOUT_SECONDS)
        finally:
            self._waiters[request_id].discard(event)
            if not self._waiters[request_id]:
                del self._waiters[request_id]

    def _on_change(self, change: ObjectChange[GPUUnit]) -> None:
        if self._waiters and change.new is not None:
            for request_id in function_request_ids(change.new):
                for event in self._waiters.get(request_id, ()):
                    event.set()
