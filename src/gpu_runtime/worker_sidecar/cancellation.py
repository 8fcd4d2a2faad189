"""Invocations in hand, which their callers may take back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class InvocationCancelled(Exception):
    """The caller took the invocation back while it was in hand."""


class CancellationRegistry:
    def __init__(self) -> None:
        self._scopes: dict[str, asyncio.Timeout] = {}

    @asynccontextmanager
    async def cancellable(self, invocation_id: str) -> AsyncIterator[None]:
        """Aborted is raised, and what the block waits for is cancelled, when the invocation is taken back."""
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
        if scope := self._scopes.pop(invocation_id, None):
            scope.reschedule(asyncio.get_running_loop().time())
