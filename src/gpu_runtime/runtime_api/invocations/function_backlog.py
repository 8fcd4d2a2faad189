"""Counts the messages of functions that wait in the streams."""

import asyncio
from collections import Counter
from collections.abc import Sequence

from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_admin import messages_by_subject


async def function_messages(
    connection: NatsConnection, topology: StreamTopology, function_id: str, streams: Sequence[Stream]
) -> int:
    """Return the number of messages of the function in these streams."""
    counts = await asyncio.gather(
        *(
            messages_by_subject(
                connection, topology.stream_name(stream), topology.subjects.stream_subject(stream, function_id)
            )
            for stream in streams
        )
    )
    return sum(sum(each.values()) for each in counts)


async def messages_of_all_functions(
    connection: NatsConnection, topology: StreamTopology, streams: Sequence[Stream]
) -> Counter[str]:
    """Return the number of messages of each function in these streams, by functionID."""
    counts = await asyncio.gather(
        *(
            messages_by_subject(connection, topology.stream_name(stream), topology.subjects.all_functions(stream))
            for stream in streams
        )
    )
    waiting: Counter[str] = Counter()
    for stream_counts in counts:
        waiting.update({subject.rpartition(".")[2]: count for subject, count in stream_counts.items()})
    return waiting
