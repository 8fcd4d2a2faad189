"""Checks in the unit cache that a function with a given requestID exists.

The cache lags behind the API server by the delay of its watch, usually milliseconds. A request for a function that the
cache lacks waits for a short time, because another replica may just have created the function.
"""

import asyncio
from dataclasses import dataclass

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.errors import DuplicateRequestID, NotFound, Unavailable
from gpu_runtime.kube.informer import Informer
from gpu_runtime.runtime_api.api_informers import FUNCTION_INDEX
from gpu_runtime.runtime_api.settings import APINamespaceSettings

FUNCTION_LOOKUP_TIMEOUT_SECONDS = 0.25
"""Maximum wait for a function that the cache lacks. After this time, the request fails with NotFound."""
CACHE_POLL_INTERVAL_SECONDS = 0.025


@dataclass(frozen=True)
class FunctionLookup:
    units: Informer[GPUUnit]
    namespaces: APINamespaceSettings

    async def must_exist(self, request_id: str) -> None:
        """Raise NotFound if no function has the requestID, and DuplicateRequestID if several have it."""
        waited_seconds = 0.0
        while not (units := self._cached_units(request_id)) and waited_seconds < FUNCTION_LOOKUP_TIMEOUT_SECONDS:
            if not self.units.has_synced:
                raise Unavailable("the list of functions is still loading; try again", retry_after=1)
            await asyncio.sleep(CACHE_POLL_INTERVAL_SECONDS)
            waited_seconds += CACHE_POLL_INTERVAL_SECONDS
        if not units:
            raise NotFound(f"no function has the requestID {request_id!r}")
        if len(units) > 1:
            names = " and ".join(sorted(str(unit.metadata.key) for unit in units))
            raise DuplicateRequestID(f"units {names} have the same requestID {request_id!r}; change one of them")

    def _cached_units(self, request_id: str) -> list[GPUUnit]:
        units = self.units.store.by_index(FUNCTION_INDEX, request_id)
        return [unit for unit in units if unit.metadata.namespace in self.namespaces.units]
