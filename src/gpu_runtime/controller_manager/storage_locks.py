"""Locks per storage. Only one task at a time may create pods that mount a storage, or detach the storage.

The unit reconciler and the storage reconciler both read the same attachment. Without a lock, the unit reconciler could
create a pod that mounts the storage while the storage reconciler detaches it. Neither would see the write of the other
in its cache in time.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from weakref import WeakValueDictionary

from gpu_runtime.kube.meta import ObjectKey


class StorageLocks:
    """One lock per GPUStorage. The locks work within this process. Leader election excludes other replicas."""

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[ObjectKey, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def acquire(self, storages: Iterable[ObjectKey]) -> AsyncIterator[None]:
        """Hold the locks of all given storages inside the `async with` block."""
        async with AsyncExitStack() as stack:
            # Every task acquires the locks in the same order. This prevents deadlocks.
            for key in sorted(set(storages)):
                await stack.enter_async_context(self._lock_for(key))
            yield

    def _lock_for(self, key: ObjectKey) -> asyncio.Lock:
        """Return the lock of a storage. Python deletes the lock when no task holds it or waits for it."""
        lock = self._locks.get(key)
        if lock is None:
            lock = self._locks[key] = asyncio.Lock()
        return lock
