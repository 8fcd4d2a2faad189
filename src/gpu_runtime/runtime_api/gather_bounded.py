"""Many requests, a few at a time."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

A = TypeVar("A")
R = TypeVar("R")


async def gather_bounded(
    turns: asyncio.Semaphore, work: Callable[[A], Awaitable[R]], things: Iterable[A]
) -> list[R | BaseException]:
    """What came of each, in order. A failure ends none of the others: what is under way at the API server cannot be
    taken back, so its end is waited for."""

    async def one(thing: A) -> R:
        async with turns:
            return await work(thing)

    return await asyncio.gather(*(one(thing) for thing in things), return_exceptions=True)
