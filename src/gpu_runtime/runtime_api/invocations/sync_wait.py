"""Waits for the result of an invocation on behalf of a synchronous caller."""

import asyncio
import contextlib
from dataclasses import dataclass

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.inbox import PendingReply
from gpu_runtime.runtime_api.invocations.result_client import ResultClient

INITIAL_POLL_INTERVAL_SECONDS, MAX_POLL_INTERVAL_SECONDS = 1.0, 5.0
"""Interval between reads of the record while no reply has arrived. The interval doubles until it reaches the
maximum."""


@dataclass(frozen=True)
class SyncWaiter:
    records: InvocationRecordStore
    results: ResultClient

    async def wait_for_reply(self, expected: PendingReply, invocation_id: str, max_wait: float) -> Result | None:
        """Return the result that the worker sends, or None if it does not arrive within `max_wait` seconds.

        The process that ends the invocation sends the reply once. The reply is lost if the NATS connection is down at
        that time. So this method also polls the record.
        """
        loop = asyncio.get_running_loop()
        deadline, interval = loop.time() + max_wait, INITIAL_POLL_INTERVAL_SECONDS
        while (remaining := deadline - loop.time()) > 0:
            await asyncio.wait({expected.reply}, timeout=min(interval, remaining))
            if expected.reply.done():
                return await self._decode_reply(expected, invocation_id)
            with contextlib.suppress(JetStreamError, Unavailable):
                if (result := await self._find_stored_result(invocation_id)) is not None:
                    return result
            interval = min(2 * interval, MAX_POLL_INTERVAL_SECONDS)
        return None

    async def wait_for_record(self, invocation_id: str, max_wait: float) -> Result | None:
        """Return the result of an invocation whose worker replies to another request.

        The method watches the record. It returns None if the invocation does not finish within `max_wait` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait), self.records.bucket.watch(invocation_id) as watch:
                while True:
                    try:
                        entry = await anext(watch)
                    except JetStreamError:
                        await asyncio.sleep(INITIAL_POLL_INTERVAL_SECONDS)
                        watch.notify()
                        continue
                    if entry is not None and self.records.decode(entry).record.finished:
                        return await self.results.find(invocation_id)
        return None

    async def _decode_reply(self, expected: PendingReply, invocation_id: str) -> Result | None:
        try:
            return decode(expected.reply.result().data, Result)
        except MessageDecodeError:
            return await self._find_stored_result(invocation_id)

    async def _find_stored_result(self, invocation_id: str) -> Result | None:
        stored = await self.records.read(invocation_id)
        finished = stored is not None and stored.record.finished
        return await self.results.find(invocation_id) if finished else None
