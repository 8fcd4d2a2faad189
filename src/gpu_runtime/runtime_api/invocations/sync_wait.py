"""Waiting for the end of an invocation, for a caller who has asked for its answer."""

import asyncio
import contextlib
from dataclasses import dataclass

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.invocation_record import Stage
from gpu_runtime.contract.messages.message_codec import Unreadable, decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.inbox import Expected
from gpu_runtime.runtime_api.invocations.record_store import Records, recorded
from gpu_runtime.runtime_api.invocations.result_client import Results

FIRST_LOOK, LONGEST_LOOK = 1.0, 5.0
"""Seconds between looks at the record of an invocation whose reply does not come."""


@dataclass(frozen=True)
class Waiting:
    records: Records
    results: Results

    async def for_reply(self, expected: Expected, invocation_id: str, within: float) -> Result | None:
        """The result, as the worker sends it; None where it does not come in time.

        A reply is sent once. It is lost if the connection is away at that moment, and nobody sends one for what
        expires or is cancelled: so the record is looked at now and then.
        """
        loop = asyncio.get_running_loop()
        ends, pause = loop.time() + within, FIRST_LOOK
        while (left := ends - loop.time()) > 0:
            await asyncio.wait({expected.answer}, timeout=min(pause, left))
            if expected.answer.done():
                return await self._read(expected, invocation_id)
            with contextlib.suppress(StreamError, Unavailable):
                if (found := await self._stored(invocation_id)) is not None:
                    return found
            pause = min(2 * pause, LONGEST_LOOK)
        return None

    async def for_record(self, invocation_id: str, within: float) -> Result | None:
        """The result of an invocation whose worker replies to somebody else; None where it does not come in time."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within), self.records.bucket.watch(invocation_id) as watch:
                while True:
                    try:
                        entry = await anext(watch)
                    except StreamError:
                        await asyncio.sleep(FIRST_LOOK)
                        watch.look()
                        continue
                    if entry is not None and recorded(entry).record.stage is Stage.TERMINAL:
                        return await self.results.find(invocation_id)
        return None

    async def _read(self, expected: Expected, invocation_id: str) -> Result | None:
        try:
            return decode(expected.answer.result().data, Result)
        except Unreadable:
            return await self._stored(invocation_id)

    async def _stored(self, invocation_id: str) -> Result | None:
        found = await self.records.read(invocation_id)
        ended = found is not None and found.record.stage is Stage.TERMINAL
        return await self.results.find(invocation_id) if ended else None
