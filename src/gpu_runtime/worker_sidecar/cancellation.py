"""Aborts invocations that are in flight on this worker and that their callers cancelled.

A cancel message is only a hint, because other senders than the runtime API may be able to publish it. The registry
aborts an invocation only if the record of the invocation says that the caller cancelled it. The runtime API writes the
record before it publishes the message.
"""

import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from gpu_runtime.invocation_records.record_store import RecordUnreadable, WorkerRecords
from gpu_runtime.jetstream.errors import JetStreamError

logger = logging.getLogger(__name__)

CHECK_INTERVAL_SECONDS = 0.05
"""Minimum number of seconds between two reads of the same record, so that a flood of messages causes few reads."""


class InvocationCancelled(Exception):
    """The caller cancelled the invocation while it was in flight."""


class CancellationRegistry:
    def __init__(self, records: WorkerRecords) -> None:
        self._records = records
        self._scopes: dict[str, asyncio.Timeout] = {}
        """The timeout scope that aborts each invocation in flight, by invocationID."""
        self._hinted: set[str] = set()
        """The invocations in flight for which a cancel message arrived after their record was last read."""
        self._wake_up = asyncio.Event()

    @asynccontextmanager
    async def cancellable(self, invocation_id: str) -> AsyncIterator[None]:
        """Run a block that a cancellation can abort.

        A cancellation cancels the awaitable that the block awaits. The context manager then raises InvocationCancelled.
        """
        scope = asyncio.timeout(None)
        try:
            async with scope:
                self._scopes[invocation_id] = scope
                try:
                    yield
                finally:
                    self._scopes.pop(invocation_id, None)
                    self._hinted.discard(invocation_id)
        except TimeoutError:
            if scope.expired():
                raise InvocationCancelled from None
            raise

    def on_cancel(self, invocation_id: str) -> None:
        """Check the record of an invocation soon. Do nothing if the invocation is not in flight on this worker."""
        if invocation_id in self._scopes:
            self._hinted.add(invocation_id)
            self._wake_up.set()

    async def run(self) -> None:
        """Abort invocations until the task is cancelled."""
        while True:
            await self._wake_up.wait()
            self._wake_up.clear()
            for invocation_id in tuple(self._hinted):
                await self._check(invocation_id)
            await asyncio.sleep(CHECK_INTERVAL_SECONDS)

    async def _check(self, invocation_id: str) -> None:
        self._hinted.discard(invocation_id)
        try:
            stored = await self._records.read(invocation_id)
        except (RecordUnreadable, JetStreamError) as error:
            fields = {"invocation_id": invocation_id, "error": str(error)}
            logger.warning("record of a cancelled invocation was not read; the invocation continues", extra=fields)
            return
        if stored is not None and stored.record.cancel_requested and (scope := self._scopes.pop(invocation_id, None)):
            scope.reschedule(asyncio.get_running_loop().time())
