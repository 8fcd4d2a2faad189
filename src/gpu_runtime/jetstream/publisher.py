"""Publishes messages to streams and retries until a stream acknowledges them.

When `publish` returns, a stream has stored the message. A publisher sends an unacknowledged message again until the
timeout of the publisher. JetStream stores a message with a message ID only once, because it remembers the IDs for the
duplicate window of the stream. There is one exception: a restarted server rebuilds the IDs from the stored messages. If
a message was deleted before the restart, the server stores a repetition of it again. Consumers must therefore tolerate
duplicates.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

import msgspec
from msgspec import Struct
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import (
    ApiErrorBody,
    JetStreamError,
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
_InFlightPublish: TypeAlias = "tuple[OutgoingMessage, asyncio.Future[Msg], Callable[[], None]]"


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

    async def publish_many(
        self, messages: Iterable[OutgoingMessage], max_in_flight: int = 256
    ) -> list[PubAck | JetStreamError]:
        """Store many messages without waiting for each acknowledgement. Return one outcome per message, in order.

        At most `max_in_flight` messages are unacknowledged at any time. Messages that fail are retried one by one.
        """
        outcomes: list[PubAck | JetStreamError] = []
        sent: deque[_InFlightPublish | OutgoingMessage] = deque()
        try:
            for message in messages:
                sent.append(await self._start_publish(message))
                if len(sent) >= max_in_flight:
                    outcomes.append(await self._wait_for_ack(sent.popleft()))
            while sent:
                outcomes.append(await self._wait_for_ack(sent.popleft()))
        finally:
            for unacknowledged in sent:
                if not isinstance(unacknowledged, OutgoingMessage):
                    unacknowledged[2]()
        return outcomes

    async def _publish_once(self, message: OutgoingMessage, timeout_seconds: float) -> PubAck:
        response = await self.connection.request(
            message.subject, message.data, headers=_headers(message), timeout_seconds=timeout_seconds
        )
        return decode_pub_ack(response.data)

    async def _start_publish(self, message: OutgoingMessage) -> "_InFlightPublish | OutgoingMessage":
        try:
            reply, cancel = await self.connection.start_request(message.subject, message.data, _headers(message))
        except JetStreamError:
            return message
        return message, reply, cancel

    async def _wait_for_ack(self, sent: "_InFlightPublish | OutgoingMessage") -> PubAck | JetStreamError:
        if isinstance(sent, OutgoingMessage):
            return await self._publish_or_error(sent)
        message, reply, cancel = sent
        try:
            async with asyncio.timeout(self.attempt_timeout_seconds):
                return _pub_ack_from(await reply, message)
        except (NatsUnreachable, NoResponders, TimeoutError) as error:
            failure = (
                error if isinstance(error, JetStreamError) else NatsUnreachable("no acknowledgement arrived", sent=True)
            )
            return await self._publish_or_error(message) if _is_retryable(failure, message) else failure
        except JetStreamError as error:
            return error
        finally:
            cancel()

    async def _publish_or_error(self, message: OutgoingMessage) -> PubAck | JetStreamError:
        try:
            return await self.publish(message)
        except JetStreamError as error:
            return error


def decode_pub_ack(data: bytes) -> PubAck:
    """Decode the response of a stream. Raises JetStreamApiError if the stream rejected the message."""
    try:
        response = _PUB_ACK_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise NatsDecodeError(f"the response is not a publish acknowledgement of a stream: {error}") from error
    if response.error is not None:
        raise api_error_from(response.error)
    return response


def _pub_ack_from(response: Msg, message: OutgoingMessage) -> PubAck:
    if not response.data and response.headers and response.headers.get("Status") == "503":
        raise NoResponders(f"no stream stores subject {message.subject}")
    return decode_pub_ack(response.data)


def _headers(message: OutgoingMessage) -> Mapping[str, str]:
    return {**message.headers, MESSAGE_ID_HEADER: message.message_id} if message.message_id else message.headers


def _is_retryable(error: JetStreamError, message: OutgoingMessage) -> bool:
    """Return whether a retry cannot store the message twice: it was not stored, or it has a message ID."""
    match error:
        case NatsUnreachable(sent=sent):
            return bool(message.message_id) or not sent
        case NoResponders():
            return True
    return False
