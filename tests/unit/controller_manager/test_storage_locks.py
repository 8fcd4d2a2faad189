"""Locks of one storage are exclusive. Locks of different storages are independent."""

import asyncio

from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.kube.meta import ObjectKey

ONE, OTHER = ObjectKey("n", "one"), ObjectKey("n", "other")


async def test_locks_of_one_storage_exclude_each_other_and_others_do_not_wait() -> None:
    locks, order = StorageLocks(), list[str]()

    async def lock_and_record(name: str, *keys: ObjectKey) -> None:
        async with locks.acquire(keys):
            order.append(name)

    async with locks.acquire([ONE]):
        waiting = asyncio.create_task(lock_and_record("second", OTHER, ONE, ONE))
        await asyncio.sleep(0)
        assert order == []
        await lock_and_record("no lock in common")
    await waiting
    assert order == ["no lock in common", "second"]


async def test_locking_several_storages_never_deadlocks() -> None:
    locks = StorageLocks()

    async def lock_repeatedly(*keys: ObjectKey) -> None:
        for _ in range(20):
            async with locks.acquire(keys):
                await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(
            lock_repeatedly(ONE, OTHER), lock_repeatedly(OTHER, ONE), lock_repeatedly(ONE), lock_repeatedly(OTHER)
        )


async def test_failed_or_cancelled_task_releases_its_lock() -> None:
    locks = StorageLocks()

    async def fail() -> None:
        async with locks.acquire([ONE]):
            raise ValueError

    assert isinstance((await asyncio.gather(fail(), return_exceptions=True))[0], ValueError)
    async with locks.acquire([ONE]):
        waiting = asyncio.create_task(fail())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(60), locks.acquire([ONE]):
        assert waiting.cancelled()
