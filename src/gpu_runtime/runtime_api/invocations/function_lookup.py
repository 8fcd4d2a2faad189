"""Which functions there are: units of an allowed namespace that are functions, by their requestID.

They are known from the cache of units, which is as fresh as its watch: usually milliseconds. Whoever names a function
that is not known waits for a moment, since it may just have been made on another replica; only then it is unknown.
"""

import asyncio
from collections import defaultdict
from contextlib import suppress

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import Conflict, NotFound, Unavailable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.kube.store import ObjectChange
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX, function_request_ids
from gpu_runtime.runtime_api.settings import APINamespaceSettings

FUNCTION_LOOKUP_TIMEOUT_SECONDS = 0.25


class FunctionLookup:
    def __init__(self, units: Informer[GPUUnit], namespaces: APINamespaceSettings) -> None:
        self._units, self._namespaces = units, namespaces
        self._waiters: defaultdict[str, set[asyncio.Event]] = defaultdict(set)
        units.add_event_handler(self._on_change)

    async def must_exist(self, request_id: str) -> None:
        """NotFound where there is no such function; Conflict where there are several of that name."""
        found = self._cached_units(request_id)
        if not found:
            if not self._units.has_synced:
                raise Unavailable("the functions are still being read; try again", retry_after=1)
            await self._wait_for_change(request_id)
            found = self._cached_units(request_id)
        if not found:
            raise NotFound(f"there is no function with the requestID {request_id!r}")
        if len(found) > 1:
            names = " and ".join(sorted(str(unit.metadata.key) for unit in found))
            raise Conflict(f"{names} have the same requestID {request_id!r}; give one of them another")

    def _cached_units(self, request_id: str) -> list[GPUUnit]:
        found = self._units.store.by_index(FUNCTION_INDEX, request_id)
        return [unit for unit in found if unit.metadata.namespace in self._namespaces.units]

    async def _wait_for_change(self, request_id: str) -> None:
        event = asyncio.Event()
        self._waiters[request_id].add(event)
        try:
            with suppress(TimeoutError):
                async with asyncio.timeout(FUNCTION_LOOKUP_TIMEOUT_SECONDS):
                    await event.wait()
        finally:
            self._waiters[request_id].discard(event)
            if not self._waiters[request_id]:
                del self._waiters[request_id]

    def _on_change(self, change: ObjectChange[GPUUnit]) -> None:
        if self._waiters and change.new is not None:
            for request_id in function_request_ids(change.new):
                for event in self._waiters.get(request_id, ()):
                    event.set()
