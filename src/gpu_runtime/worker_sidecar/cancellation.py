"""Aborts an invocation that is in flight on this worker when its caller cancels it."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class InvocationCancelled(Exception):
    """The caller cancelled the invocation while it was in flight."""


class CancellationRegistry:
    """Maps the ID of each invocation in flight to the timeout scope that aborts it."""

    def __init__(self) -> None:
        self._scopes: dict[str, asyncio.Timeout] = {}

    @asynccontextmanager
    async def cancellable(self, invocation_id: str) -> AsyncIterator[None]:
        """Run a block that `cancel` can abort.

        `cancel` cancels the awaitable that the block awaits. The context manager then raises InvocationCancelled.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes[invocation_id] = scope
                try:
                    yield
                finally:
                    self._scopes.pop(invocation_id, None)
        except TimeoutError:
            if scope.expired():
                raise InvocationCancelled from None
            raise

    def cancel(self, invocation_id: str) -> None:
        """Cancel an invocation. Do nothing if it is not in flight on this worker."""
        if scope := self._scopes.pop(invocation_id, None):
            scope.reschedule(asyncio.get_running_loop().time())
