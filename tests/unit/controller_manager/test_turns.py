"""One task at a time decides about a storage; about different ones, many do."""

import asyncio

from gpu_runtime.controller_manager.storage_locks import Turns
from gpu_runtime.kube.meta import Key

ONE, OTHER = Key("n", "one"), Key("n", "other")


async def test_one_waits_for_the_other_and_strangers_do_not_wait() -> None:
    turns, order = Turns(), list[str]()

    async def take(name: str, *keys: Key) -> None:
        async with turns.at(keys):
            order.append(name)

    async with turns.at([ONE]):
        waiting = asyncio.create_task(take("second", OTHER, ONE, ONE))
        await asyncio.sleep(0)
        assert order == []
        await take("nothing in common")
    await waiting
    assert order == ["nothing in common", "second"]


async def test_whoever_wants_several_never_waits_for_somebody_who_waits_for_him() -> None:
    turns = Turns()

    async def take(*keys: Key) -> None:
        for _ in range(20):
            async with turns.at(keys):
                await asyncio.sleep(0)

    async with asyncio.timeout(60):
        await asyncio.gather(take(ONE, OTHER), take(OTHER, ONE), take(ONE), take(OTHER))


async def test_a_task_that_fails_or_gives_up_gives_its_turn_back() -> None:
    turns = Turns()

    async def fail() -> None:
        async with turns.at([ONE]):
            raise ValueError

    assert isinstance((await asyncio.gather(fail(), return_exceptions=True))[0], ValueError)
    async with turns.at([ONE]):
        waiting = asyncio.create_task(fail())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.wait([waiting])
    async with asyncio.timeout(60), turns.at([ONE]):
        assert waiting.cancelled()
