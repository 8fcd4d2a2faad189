"""Runs an async function for many items, with a maximum number of concurrent calls."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


async def gather_bounded(
    semaphore: asyncio.Semaphore, work: Callable[[A], Awaitable[R]], items: Iterable[A]
) -> list[R | BaseException]:
    """Return the result or the exception of each item, in the order of the items.

    An exception does not cancel the calls for other items, because a request that the API server has received cannot be
    cancelled. The function returns when all calls have ended.
    """

    async def run_one(item: A) -> R:
        async with semaphore:
            return await work(item)

    return await asyncio.gather(*(run_one(item) for item in items), return_exceptions=True)
