"""Locks per storage: only one task at a time creates pods that use an attachment, or releases that attachment.

The unit reconciler and the storage reconciler both decide from the same attachment. Without locks, one could create a
pod that mounts the storage while the other detaches the storage, because neither sees the write of the other in its
cache.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from gpu_runtime.kube.meta import ObjectKey


class StorageLocks:
    """One lock per GPUStorage. The locks exclude tasks of this process; leader election excludes other replicas."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, storages: Iterable[ObjectKey]) -> AsyncIterator[None]:
        """Hold the locks of all given storages inside the `async with` block."""
        async with AsyncExitStack() as stack:
            # Every task acquires the locks in the same order. This excludes deadlocks.
            for key in sorted(set(storages)):
                await stack.enter_async_context(self._lock_for(key))
            yield

    def _lock_for(self, key: ObjectKey) -> asyncio.Lock:
        """Return the lock of a storage. It is garbage collected when no task holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
