"""Counts the waiting invocations of all functions, with one read of each queue per second.

The counts are up to a second old. They say which functions need an exact count, so that the requests of all other
functions need none.
"""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_admin import messages_by_subject

COUNTS_TTL_SECONDS = 1.0
EXACT_COUNT_USAGE = 0.75
"""The part of its limit from which a function needs an exact count. The rest is for the requests of a second."""


@dataclass(eq=False)
class QueueCounts:
    connection: NatsConnection
    topology: StreamTopology
    clock: Callable[[], float]
    _waiting: Counter[str] | None = None
    """The messages of each function in INVOKE and DISPATCH, by functionID."""
    _read_at: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def is_near_limit(self, function_id: str) -> bool:
        async with self._reading:
            if self._waiting is None or self.clock() - self._read_at >= COUNTS_TTL_SECONDS:
                self._waiting, self._read_at = await self._read(), self.clock()
            return self._waiting[function_id] >= EXACT_COUNT_USAGE * self.topology.limits.max_messages_per_subject

    async def _read(self) -> Counter[str]:
        counts = await asyncio.gather(
            *(
                messages_by_subject(
                    self.connection, self.topology.stream_name(queue), self.topology.subjects.all_functions(queue)
                )
                for queue in (Stream.INVOKE, Stream.DISPATCH)
            )
        )
        waiting: Counter[str] = Counter()
        for queue in counts:
            waiting.update({subject.rpartition(".")[2]: count for subject, count in queue.items()})
        return waiting
