"""Rejects invocations of a function that has used its share of the queues, and all invocations if no capacity is left.

JetStream limits the messages of a function, but not their bytes. So this module reads the number of waiting messages of
the function and decides from the size of the new message: the larger the message, the fewer messages may wait. The
server has the counts, so the decision is the same in every replica and after a restart.

An accepted invocation must never find a full stream or bucket. INVOKE has half of the capacity of DISPATCH, and the API
rejects invocations while DISPATCH is half full. So DISPATCH has capacity for all messages of INVOKE. The API also
rejects invocations when the records use 90 % of their bucket. The rest is for changes of the records of accepted
invocations. Before that, `record_shares` rejects the invocations of functions that have too many records.
"""

import asyncio
from collections import Counter
from dataclasses import dataclass, field
from typing import Protocol

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_admin import stream_size
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.invocations.function_backlog import function_messages, messages_of_all_functions
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.record_shares import RecordShares, RecordUsage

USAGE_TTL_SECONDS = 1.0
"""How long a replica uses the sizes of the streams before it reads them again."""
RETRY_AFTER_SECONDS = 5
EXACT_COUNT_USAGE = 0.75
"""The part of its limit from which a function needs an exact count. The rest is for the requests of a second."""
QUEUES = (Stream.INVOKE, Stream.DISPATCH)
MAX_RECORD_USAGE = 0.9
"""Part of the bucket that new records can use."""
MESSAGE_OVERHEAD_BYTES = 2048
"""Estimated size of a message without body, headers and attributes."""


class QueueCapacity(Protocol):
    async def require(self, invocation: Invocation) -> None:
        """Raise Overloaded if the queues have no capacity for the invocation."""
        ...


@dataclass(frozen=True)
class QueueUsage:
    dispatch_bytes: int
    records: RecordUsage
    waiting: Counter[str]
    """The messages of each function in INVOKE and DISPATCH, by functionID."""


def usage_problem(usage: QueueUsage, limits: StreamLimits) -> str | None:
    """Return why no function can enqueue an invocation, or None."""
    if usage.records.free_bytes == 0:
        return "the bucket of invocation records is almost full; send the same request again later"
    if usage.dispatch_bytes >= limits.invoke_max_bytes:
        return "the waiting invocations of all functions have too many bytes; send the same request again later"
    return None


def max_waiting_messages(message_bytes: int, limits: StreamLimits) -> int:
    """Return how many messages of a function may wait so that the function can enqueue a message of this size."""
    return min(limits.max_messages_per_subject, max(1, limits.function_share_bytes // message_bytes))


def message_bytes(invocation: Invocation) -> int:
    """Return the estimated size of the message of an invocation. The body is encoded as base64."""
    metadata = (*invocation.headers.items(), *invocation.attributes.items())
    metadata_bytes = sum(len(key) + len(value) for key, value in metadata)
    return MESSAGE_OVERHEAD_BYTES + len(invocation.body) * 4 // 3 + metadata_bytes


@dataclass(eq=False)
class QueueShares:
    connection: NatsConnection
    topology: StreamTopology
    metrics: InvocationMetrics
    clock: Clock
    record_shares: RecordShares
    _usage: QueueUsage | None = None
    _read_at: float = 0.0
    _reading: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def require(self, invocation: Invocation) -> None:
        usage = await self._current_usage()
        if problem := usage_problem(usage, self.topology.limits):
            raise Overloaded(problem, retry_after=RETRY_AFTER_SECONDS)
        await self.record_shares.require(invocation, usage.records)
        size = message_bytes(invocation)
        limit = max_waiting_messages(size, self.topology.limits)
        # If DISPATCH were full for a function, the activator would retry all messages of the function in INVOKE again
        # and again. So the limit applies to both streams together, also for small messages.
        is_small = limit == self.topology.limits.max_messages_per_subject
        if not is_small or usage.waiting[invocation.function_id] >= EXACT_COUNT_USAGE * limit:
            await self._require_share(invocation, size, limit)

    async def _require_share(self, invocation: Invocation, size: int, limit: int) -> None:
        waiting = await function_messages(self.connection, self.topology, invocation.function_id, QUEUES)
        if waiting >= limit:
            self.metrics.over_share.labels("queue").inc()
            raise Overloaded(
                f"{waiting} invocations of function {invocation.serverless_request_id} are waiting; a message of {size}"
                f" bytes needs fewer than {limit} waiting invocations; send the same request again later",
                retry_after=RETRY_AFTER_SECONDS,
            )

    async def _current_usage(self) -> QueueUsage:
        async with self._reading:
            if self._usage is None or self.clock.monotonic() - self._read_at >= USAGE_TTL_SECONDS:
                self._usage, self._read_at = await self._read_usage(), self.clock.monotonic()
            return self._usage

    async def _read_usage(self) -> QueueUsage:
        dispatch, bucket = self.topology.stream_name(Stream.DISPATCH), self.topology.record_bucket.stream_name
        queued, records = await stream_size(self.connection, dispatch), await stream_size(self.connection, bucket)
        max_bytes = self.topology.limits.record_max_bytes
        self.metrics.record_bytes.set(records.used_bytes)
        self.metrics.record_limit.set(max_bytes)
        new_record_bytes = int(MAX_RECORD_USAGE * max_bytes)
        return QueueUsage(
            queued.used_bytes,
            RecordUsage(records.used_bytes, records.message_count, new_record_bytes),
            await messages_of_all_functions(self.connection, self.topology, QUEUES),
        )
