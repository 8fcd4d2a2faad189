"""Waiting for the end of an invocation, for a caller who has asked for its answer."""

import asyncio
import contextlib
from dataclasses import dataclass

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.invocation_record import RecordState
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.inbox import PendingReply
from gpu_runtime.runtime_api.invocations.record_store import InvocationRecordStore, record_from_entry
from gpu_runtime.runtime_api.invocations.result_client import ResultClient

INITIAL_POLL_INTERVAL_SECONDS, MAX_POLL_INTERVAL_SECONDS = 1.0, 5.0
"""Seconds between looks at the record of an invocation whose reply does not come."""


@dataclass(frozen=True)
class SyncWaiter:
    records: InvocationRecordStore
    results: ResultClient

    async def wait_for_reply(self, expected: PendingReply, invocation_id: str, within: float) -> Result | None:
        """The result, as the worker sends it; None where it does not come in time.

        A reply is sent once. It is lost if the connection is away at that moment, and nobody sends one for what
        expires or is cancelled: so the record is looked at now and then.
        """
        loop = asyncio.get_running_loop()
        ends, pause = loop.time() + within, INITIAL_POLL_INTERVAL_SECONDS
        while (left := ends - loop.time()) > 0:
            await asyncio.wait({expected.reply}, timeout=min(pause, left))
            if expected.reply.done():
                return await self._decode_reply(expected, invocation_id)
            with contextlib.suppress(JetStreamError, Unavailable):
                if (found := await self._find_stored_result(invocation_id)) is not None:
                    return found
            pause = min(2 * pause, MAX_POLL_INTERVAL_SECONDS)
        return None

    async def wait_for_record(self, invocation_id: str, within: float) -> Result | None:
        """The result of an invocation whose worker replies to somebody else; None where it does not come in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), self.records.bucket.watch(invocation_id) as watch:
                while True:
                    try:
                        entry = await anext(watch)
                    except JetStreamError:
                        await asyncio.sleep(INITIAL_POLL_INTERVAL_SECONDS)
                        watch.notify()
                        continue
                    if entry is not None and record_from_entry(entry).record.state is RecordState.TERMINAL:
                        return await self.results.find(invocation_id)
        return None

    async def _decode_reply(self, expected: PendingReply, invocation_id: str) -> Result | None:
        try:
            return decode(expected.reply.result().data, Result)
        except MessageDecodeError:
            return await self._find_stored_result(invocation_id)

    async def _find_stored_result(self, invocation_id: str) -> Result | None:
        found = await self.records.read(invocation_id)
        ended = found is not None and found.record.state is RecordState.TERMINAL
        return await self.results.find(invocation_id) if ended else None
