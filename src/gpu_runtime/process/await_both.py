"""Awaits two results at the same time."""

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

A = TypeVar("A")
B = TypeVar("B")


async def await_both(first: Awaitable[A], second: Awaitable[B]) -> tuple[A, B]:
    """Return both results. If one fails, wait for the end of the other, and then raise the error.

    An `asyncio.TaskGroup` would raise an exception group, which hides the error from callers that handle its type.
    """
    left, right = await asyncio.gather(first, second, return_exceptions=True)
    if isinstance(left, BaseException):
        raise left
    if isinstance(right, BaseException):
        raise right
    return left, right
