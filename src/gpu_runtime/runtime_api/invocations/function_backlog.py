"""Counts the messages of a function that wait in the streams."""

import asyncio
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
