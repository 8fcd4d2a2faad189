"""Reads the backlog of each function: the number of its messages in the DISPATCH stream.

A message stays in the stream until a worker acknowledges it. So the backlog includes waiting and running invocations.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.stream_admin import messages_by_subject

logger = logging.getLogger(__name__)


@dataclass
class Backlog:
    connection: NatsConnection
    topology: StreamTopology
    clock: Callable[[], float]
    cache_ttl_seconds: float
    """Seconds after the last read_all() for which its counts are valid."""
    _counts: dict[str, int] = field(default_factory=dict)
    _read_at: float = float("-inf")
    _invalidated: set[str] = field(default_factory=set)
    """functionIDs of functions that received an invocation after their backlog was last read."""

    def invalidate(self, function_id: str) -> None:
        """Discard the cached count of a function that received an invocation."""
        self._invalidated.add(function_id)

    async def read_all(self) -> dict[str, int] | None:
        """Return the backlog of every function by functionID, or None if the query failed.

        A function without messages is not in the result.
        """
        read_at, self._invalidated = self.clock(), set()
        counts = await self._query_counts(self.topology.subjects.all_functions(Stream.DISPATCH))
        if counts is not None:
            self._counts, self._read_at = counts, read_at
        return counts

    async def count(self, function_id: str) -> int | None:
        """Return the backlog of one function, or None if the query failed."""
        if function_id not in self._invalidated and self.clock() - self._read_at < self.cache_ttl_seconds:
            return self._counts.get(function_id, 0)
        self._invalidated.discard(function_id)
        counts = await self._query_counts(self.topology.subjects.dispatch(function_id))
        if counts is None:
            self._invalidated.add(function_id)
            return None
        self._counts[function_id] = counts.get(function_id, 0)
        return self._counts[function_id]

    async def _query_counts(self, pattern: str) -> dict[str, int] | None:
        stream = self.topology.stream_name(Stream.DISPATCH)
        try:
            counts = await messages_by_subject(self.connection, stream, pattern)
        except JetStreamError as error:
            logger.warning(
                "backlog query failed; the autoscaler will retry",
                extra={"stream": stream, "subject": pattern, "error": str(error)},
            )
            return None
        return {subject.rpartition(".")[2]: count for subject, count in counts.items()}
