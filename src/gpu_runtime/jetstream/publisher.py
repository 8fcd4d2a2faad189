"""Publishing into streams: a message is stored when this returns, and stored once where it has an ID.

Within its patience, a publisher sends again what was not acknowledged. Under an ID that is safe as long as the message
is still in the stream or the server was not restarted: JetStream remembers IDs for the stream's window, but a restart
makes it forget those whose messages are gone. So a consumer must be able to meet a message twice.
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
    """Where a message lies."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    """Whether it lay there already."""


class _PubAckResponse(PubAck, frozen=True):
    error: ApiErrorBody | None = None


_PUB_ACK_DECODER = msgspec.json.Decoder(_PubAckResponse)
_InFlightPublish: TypeAlias = "tuple[OutgoingMessage, asyncio.Future[Msg], Callable[[], None]]"


@dataclass(frozen=True)
class Publisher:
    connection: NatsConnection
    timeout_seconds: float = 5
    """Seconds after which a message that was not acknowledged is reported as Unreachable."""
    attempt_timeout_seconds: float = 2
    """How long one try waits for the acknowledgement."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=0.05, max_seconds=0.5))

    async def publish(self, message: OutgoingMessage) -> PubAck:
        """Have a message stored. Unreachable, NoResponders, Full, TooLarge or Refused if it is not."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.timeout_seconds
        failures = 0
        while True:
            left = ends - loop.time()
            try:
                return await self._publish_once(message, min(self.attempt_timeout_seconds, max(left, 0.01)))
            except (NatsUnreachable, NoResponders) as error:
                failures += 1
                pause = self.backoff.delay(failures)
                if not _is_retryable(error, message) or loop.time() + pause >= ends:
                    raise
            await asyncio.sleep(pause)

    async def publish_many(
        self, messages: Iterable[OutgoingMessage], max_in_flight: int = 256
    ) -> list[PubAck | JetStreamError]:
        """Have many stored, without waiting for each before the next. Gives every one's own outcome, in their order.

        At most so many are unacknowledged at a time. What fails is tried again one by one.
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
            for left in sent:
                if not isinstance(left, OutgoingMessage):
                    left[2]()
        return outcomes

    async def _publish_once(self, message: OutgoingMessage, within: float) -> PubAck:
        answer = await self.connection.request(
            message.subject, message.data, headers=_headers(message), timeout_seconds=within
        )
        return decode_pub_ack(answer.data)

    async def _start_publish(self, message: OutgoingMessage) -> "_InFlightPublish | OutgoingMessage":
        try:
            answer, end = await self.connection.start_request(message.subject, message.data, _headers(message))
        except JetStreamError:
            return message
        return message, answer, end

    async def _wait_for_ack(self, sent: "_InFlightPublish | OutgoingMessage") -> PubAck | JetStreamError:
        if isinstance(sent, OutgoingMessage):
            return await self._publish_or_error(sent)
        message, answer, end = sent
        try:
            async with asyncio.timeout(self.attempt_timeout_seconds):
                return _pub_ack_from(await answer, message)
        except (NatsUnreachable, NoResponders, TimeoutError) as error:
            failed = (
                error if isinstance(error, JetStreamError) else NatsUnreachable("no acknowledgement came", sent=True)
            )
            return await self._publish_or_error(message) if _is_retryable(failed, message) else failed
        except JetStreamError as error:
            return error
        finally:
            end()

    async def _publish_or_error(self, message: OutgoingMessage) -> PubAck | JetStreamError:
        try:
            return await self.publish(message)
        except JetStreamError as error:
            return error


def decode_pub_ack(data: bytes) -> PubAck:
    """What the stream answered, or why it refused."""
    try:
        answer = _PUB_ACK_DECODER.decode(data)
    except msgspec.DecodeError as error:
        raise NatsDecodeError(f"not an acknowledgement of a stream: {error}") from error
    if answer.error is not None:
        raise api_error_from(answer.error)
    return answer


def _pub_ack_from(answer: Msg, message: OutgoingMessage) -> PubAck:
    if not answer.data and answer.headers and answer.headers.get("Status") == "503":
        raise NoResponders(f"no stream takes {message.subject}")
    return decode_pub_ack(answer.data)


def _headers(message: OutgoingMessage) -> Mapping[str, str]:
    return {**message.headers, MESSAGE_ID_HEADER: message.message_id} if message.message_id else message.headers


def _is_retryable(error: JetStreamError, message: OutgoingMessage) -> bool:
    """What was surely not stored may be sent again; what may have been, only under an ID."""
    match error:
        case NatsUnreachable(sent=sent):
            return bool(message.message_id) or not sent
        case NoResponders():
            return True
    return False
