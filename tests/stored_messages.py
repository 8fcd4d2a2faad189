"""Reads the messages of a stream without a consumer."""

from collections.abc import AsyncIterator

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_messages import StoredMessage, next_message


async def iter_messages(
    connection: NatsConnection, stream: str, subject: str, sequence: int = 1
) -> AsyncIterator[StoredMessage]:
    """Yield every message from this sequence on, including messages that are stored during the iteration."""
    while (message := await next_message(connection, stream, subject, sequence)) is not None:
        yield message
        sequence = message.sequence + 1
