"""Runs an async function for many items, with a limit on how many run at the same time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


async def gather_bounded(
    semaphore: asyncio.Semaphore, work: Callable[[A], Awaitable[R]], items: Iterable[A]
) -> list[R | BaseException]:
    """The result or the exception of each item, in order.

    An exception does not cancel the other calls: a request that the API server has received cannot be cancelled, so the
    caller waits for all of them.
    """

    async def run_one(item: A) -> R:
        async with semaphore:
            return await work(item)

    return await asyncio.gather(*(run_one(item) for item in items), return_exceptions=True)
