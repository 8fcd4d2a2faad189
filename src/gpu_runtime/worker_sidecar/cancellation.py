"""Invocations in hand, which their callers may take back."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager


class Aborted(Exception):
    """The caller took the invocation back while it was in hand."""


class Calls:
    def __init__(self) -> None:
        self._abortable: dict[str, asyncio.Timeout] = {}

    @asynccontextmanager
    async def abortable(self, invocation_id: str) -> AsyncIterator[None]:
        """Aborted is raised, and what the block waits for is cancelled, when the invocation is taken back."""
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._abortable[invocation_id] = scope
                try:
                    yield
                finally:
                    self._abortable.pop(invocation_id, None)
        except TimeoutError:
            if scope.expired():
                raise Aborted from None
            raise

    def abort(self, invocation_id: str) -> None:
        if scope := self._abortable.pop(invocation_id, None):
            scope.reschedule(asyncio.get_running_loop().time())
