"""Rejects invocations of a function that has used its share of the bucket of invocation records.

A function can use at most two thirds of the bytes that the records of other functions leave free. So one function alone
can use 60 % of the bucket, and two functions can use 36 % each. However many functions use their shares, there is
always a rest, and a function that has few records can use two thirds of it.

While all records together use less than 60 %, no function can exceed its share, and this module reads nothing.
Otherwise it counts the records of the function:

- A finished invocation has a record for the same time after its result was stored. The result store counts the results
  of each function, including those that it has evicted.
- An unfinished invocation has a message in INVOKE, DISPATCH or RESULT.

NATS and the result store have the counts, so the decision is the same in every replica and after a restart. If the
result store does not respond, the last count is used. Its results wait in RESULT, so the sum stays correct.
"""

import asyncio
from dataclasses import dataclass, field
from datetime import timedelta

from gpu_runtime.contract.errors import Overloaded, Unavailable
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import to_utc_milliseconds
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.invocations.function_backlog import function_messages
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.result_client import ResultClient

FUNCTION_RECORD_SHARE = 2 / 3
"""Part of the bytes that other functions leave free. One function can use this part."""
RECORD_COUNT_TTL_SECONDS = 1.0
"""How long a replica uses the number of records of a function before it counts them again."""
MAX_COUNTED_FUNCTIONS = 10_000
"""Maximum number of functions whose counts a replica keeps."""
COUNT_QUERY_TIMEOUT_SECONDS = 1.0
"""Maximum time that an invocation waits for the count of the result store."""
SHARE_RETRY_AFTER_SECONDS = 60
"""A share becomes free only when records expire, which takes longer than for a queue."""


@dataclass(frozen=True)
class RecordUsage:
    used_bytes: int
    record_count: int
    max_bytes: int
    """Maximum size of the records of accepted invocations."""

    @property
    def free_bytes(self) -> int:
        return max(0, self.max_bytes - self.used_bytes)

    def bytes_of(self, record_count: int) -> float:
        """Return the estimated size of some of the records. The records have similar sizes."""
        return self.used_bytes * min(1.0, record_count / max(1, self.record_count))


def exceeds_share(record_count: int, usage: RecordUsage) -> bool:
    """Return whether a function with so many records has used its share."""
    function_bytes = usage.bytes_of(record_count)
    return function_bytes > FUNCTION_RECORD_SHARE * (function_bytes + usage.free_bytes)


@dataclass(eq=False)
class FunctionRecordCount:
    """The number of records of one function, as this replica counted it last."""

    finished: int = 0
    total: int = 0
    counted_at: float = float("-inf")
    lock: asyncio.Lock = field(default_factory=asyncio.Lock)


@dataclass(eq=False)
class RecordShares:
    connection: NatsConnection
    topology: StreamTopology
    metrics: InvocationMetrics
    clock: Clock
    _counts: dict[str, FunctionRecordCount] = field(default_factory=dict)

    async def require(self, invocation: Invocation, usage: RecordUsage) -> None:
        """Raise Overloaded if the function of the invocation has used its share."""
        if not exceeds_share(usage.record_count, usage):  # even if all records belonged to the function
            return
        count = await self._count_records(invocation)
        if exceeds_share(count, usage):
            self.metrics.over_share.labels("records").inc()
            raise Overloaded(
                f"function {invocation.serverless_request_id} has about {count} invocation records, which is more than"
                " its share of the bucket; send the same request again when some of these records have expired, or"
                " raise nats.streams.maxRecordBytes",
                retry_after=SHARE_RETRY_AFTER_SECONDS,
            )

    async def _count_records(self, invocation: Invocation) -> int:
        if invocation.function_id not in self._counts and len(self._counts) >= MAX_COUNTED_FUNCTIONS:
            self._counts.clear()
        known = self._counts.setdefault(invocation.function_id, FunctionRecordCount())
        async with known.lock:  # concurrent requests of a function share one query
            if self.clock.monotonic() - known.counted_at >= RECORD_COUNT_TTL_SECONDS:
                waiting = await function_messages(self.connection, self.topology, invocation.function_id, tuple(Stream))
                known.finished = await self._count_finished(invocation.serverless_request_id, known.finished)
                known.total, known.counted_at = waiting + known.finished, self.clock.monotonic()
            return known.total

    async def _count_finished(self, request_id: str, last_count: int) -> int:
        results = ResultClient(self.connection, self.topology.subjects, COUNT_QUERY_TIMEOUT_SECONDS)
        since = self.clock.now() - timedelta(seconds=self.topology.limits.record_ttl_seconds)
        try:
            return await results.count(request_id, to_utc_milliseconds(since))
        except Unavailable:
            return last_count
