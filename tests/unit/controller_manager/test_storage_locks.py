"""One task at a time decides about a storage; about different ones, many do."""

import asyncio

from gpu_runtime.controller_manager.storage_locks import StorageLocks
from gpu_runtime.kube.meta import ObjectKey

ONE, OTHER = ObjectKey("n", "one"), ObjectKey("n", "other")


async def test_locks_of_one_storage_exclude_each_other_and_others_do_not_wait() -> None:
    turns, order = StorageLocks(), list[str]()

    async def take(name: str, *keys: ObjectKey) -> None:
        async with turns.acquire(keys):
            order.append(name)

    async with turns.acquire([ONE]):
        waiting = asyncio.create_task(take("second", OTHER, ONE, ONE))
        await asyncio.sleep(0)
        assert order == []
        await take("nothing in common")
    await waiting
    assert order == ["nothing in common", "second"]


async def test_locking_several_storages_never_deadlocks() -> None:
    turns = StorageLocks()

    async def take(*keys: ObjectKey) -> None:
        for _ in range(20):
            async with turns.acquire(keys):
                await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(take(ONE, OTHER), take(OTHER, ONE), take(ONE), take(OTHER))


async def test_failed_or_cancelled_task_releases_its_lock() -> None:
    turns = StorageLocks()

    async def fail() -> None:
        async with turns.acquire([ONE]):
            raise ValueError

    assert isinstance((await asyncio.gather(fail(), return_exceptions=True))[0], ValueError)
    async with turns.acquire([ONE]):
        waiting = asyncio.create_task(fail())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(60), turns.acquire([ONE]):
        assert waiting.cancelled()
