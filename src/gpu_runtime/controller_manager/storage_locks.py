"""Turns: at any time one task decides about a storage, be it to build on its attachment or to release it.

Two reconcilers look at the same attachment. Without turns, a pod could be asked for on an attachment that is being
released in the same moment, and neither would see the other's write in its cache.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from gpu_runtime.kube.meta import ObjectKey


class StorageLocks:
    def __init__(self) -> None:
        self._locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, storages: Iterable[ObjectKey]) -> AsyncIterator[None]:
        """Be the only one who decides about these storages."""
        async with AsyncExitStack() as held:
            # In one order for everybody, so that nobody waits for somebody who waits for him.
            for key in sorted(set(storages)):
                await held.enter_async_context(self._lock_for(key))
            yield

    def _lock_for(self, key: ObjectKey) -> asyncio.Lock:
        """Nobody's lock is forgotten: it lives as long as somebody holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
