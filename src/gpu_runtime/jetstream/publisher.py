"""Publishes messages to streams and retries until a stream acknowledges them.

When `publish` returns, a stream has stored the message. A publisher sends an unacknowledged message again until the
timeout of the publisher. JetStream stores a message with a message ID only once, because it remembers the IDs for the
duplicate window of the stream. There is one exception: a restarted server rebuilds the IDs from the stored messages. If
a message was deleted before the restart, the server stores a repetition of it again. Consumers must therefore tolerate
duplicates.
"""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec
from msgspec import Struct

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import (
    ApiErrorBody,
    NatsDecodeError,
    NatsUnreachable,
    NoResponders,
    api_error_from,
)

MESSAGE_ID_HEADER = "Nats-Msg-Id"
EXPECTED_LAST_SEQUENCE_HEADER = "Nats-Expected-Last-Subject-Sequence"


class PubAck(Struct, frozen=True):
    """The acknowledgement of a stream that has stored a message."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    """Whether the stream had already stored a message with the same message ID."""


class _PubAckResponse(PubAck, frozen=True):
    error: ApiErrorBody | None = None


_PUB_ACK_DECODER = msgspec.json.Decoder(_PubAckResponse)


@dataclass(frozen=True)
class Publisher:
    connection: NatsConnection
    timeout_seconds: float = 5
    """Maximum total time of all attempts, in seconds. Then `publish` raises the error of the last attempt."""
    attempt_timeout_seconds: float = 2
    """Seconds that one attempt waits for the acknowledgement."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.05, max_seconds=0.5))

    async def publish(self, message: OutgoingMessage) -> PubAck:
        """Store a message in its stream.

        Raises NatsUnreachable, NoResponders, StreamFull, NatsMessageTooLarge or another JetStreamApiError.
        """
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self.timeout_seconds
        failures = 0
        while True:
            remaining = deadline - loop.time()
            try:
                return await self._publish_once(message, min(self.attempt_timeout_seconds, max(remaining, 0.01)))
            except (NatsUnreachable, NoResponders) as error:
                failures += 1
                delay = self.backoff.delay(failures)
                if not _is_retryable(error, message) or loop.time() + delay >= deadline:
                    raise
            await asyncio.sleep(delay)

    async def _publish_once(self, message: OutgoingMessage, timeout_seconds: float) -> PubAck:
        response = await self.connection.request(
            message.subject, message.data, headers=_headers(message), timeout_seconds=timeout_seconds
        )
        return decode_pub_ack(response.data)


def decode_pub_ack(data: bytes) -> PubAck:
    """Decode the response of a stream. Raises JetStreamApiError if the stream rejected the message."""
    try:
        response = _PUB_ACK_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise NatsDecodeError(f"the response is not a publish acknowledgement of a stream: {error}") from error
    if response.error is not None:
        raise api_error_from(response.error)
    return response


def _headers(message: OutgoingMessage) -> Mapping[str, str]:
    return {**message.headers, MESSAGE_ID_HEADER: message.message_id} if message.message_id else message.headers


def _is_retryable(error: NatsUnreachable | NoResponders, message: OutgoingMessage) -> bool:
    """Return whether a retry cannot store the message twice: it was not stored, or it has a message ID."""
    return isinstance(error, NoResponders) or not error.sent or bool(message.message_id)
