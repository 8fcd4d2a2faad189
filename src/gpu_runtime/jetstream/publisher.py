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
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import ApiFault, NoResponders, StreamError, Unreachable, Unreadable, refusal

MESSAGE_ID = "Nats-Msg-Id"
EXPECTED_REVISION = "Nats-Expected-Last-Subject-Sequence"


class Stored(Struct, frozen=True):
    """Where a message lies."""

    stream: str = ""
    seq: int = 0
    duplicate: bool = False
    """Whether it lay there already."""


class _Answer(Stored, frozen=True):
    error: ApiFault | None = None


_ANSWER = msgspec.json.Decoder(_Answer)
_Sent: TypeAlias = "tuple[Outgoing, asyncio.Future[Msg], Callable[[], None]]"


@dataclass(frozen=True)
class Publisher:
    connection: Connection
    patience: float = 5
    """Seconds after which a message that was not acknowledged is reported as Unreachable."""
    attempt_seconds: float = 2
    """How long one try waits for the acknowledgement."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=0.05, longest=0.5))

    async def publish(self, message: Outgoing) -> Stored:
        """Have a message stored. Unreachable, NoResponders, Full, TooLarge or Refused if it is not."""
        loop = asyncio.get_running_loop()
        ends = loop.time() + self.patience
        failures = 0
        while True:
            left = ends - loop.time()
            try:
                return await self._attempt(message, min(self.attempt_seconds, max(left, 0.01)))
            except (Unreachable, NoResponders) as error:
                failures += 1
                pause = self.backoff.delay(failures)
                if not _may_repeat(error, message) or loop.time() + pause >= ends:
                    raise
            await asyncio.sleep(pause)

    async def publish_many(self, messages: Iterable[Outgoing], at_once: int = 256) -> list[Stored | StreamError]:
        """Have many stored, without waiting for each before the next. Gives every one's own outcome, in their order.

        At most so many are unacknowledged at a time. What fails is tried again one by one.
        """
        outcomes: list[Stored | StreamError] = []
        sent: deque[_Sent | Outgoing] = deque()
        try:
            for message in messages:
                sent.append(await self._send(message))
                if len(sent) >= at_once:
                    outcomes.append(await self._settled(sent.popleft()))
            while sent:
                outcomes.append(await self._settled(sent.popleft()))
        finally:
            for left in sent:
                if not isinstance(left, Outgoing):
                    left[2]()
        return outcomes

    async def _attempt(self, message: Outgoing, within: float) -> Stored:
        answer = await self.connection.request(message.subject, message.data, headers=_headers(message), within=within)
        return stored(answer.data)

    async def _send(self, message: Outgoing) -> "_Sent | Outgoing":
        try:
            answer, end = await self.connection.send_for_answer(message.subject, message.data, _headers(message))
        except StreamError:
            return message
        return message, answer, end

    async def _settled(self, sent: "_Sent | Outgoing") -> Stored | StreamError:
        if isinstance(sent, Outgoing):
            return await self._outcome(sent)
        message, answer, end = sent
        try:
            async with asyncio.timeout(self.attempt_seconds):
                return _acknowledged(await answer, message)
        except (Unreachable, NoResponders, TimeoutError) as error:
            failed = error if isinstance(error, StreamError) else Unreachable("no acknowledgement came", sent=True)
            return await self._outcome(message) if _may_repeat(failed, message) else failed
        except StreamError as error:
            return error
        finally:
            end()

    async def _outcome(self, message: Outgoing) -> Stored | StreamError:
        try:
            return await self.publish(message)
        except StreamError as error:
            return error


def stored(data: bytes) -> Stored:
    """What the stream answered, or why it refused."""
    try:
        answer = _ANSWER.decode(data)
    except msgspec.DecodeError as error:
        raise Unreadable(f"not an acknowledgement of a stream: {error}") from error
    if answer.error is not None:
        raise refusal(answer.error)
    return answer


def _acknowledged(answer: Msg, message: Outgoing) -> Stored:
    if not answer.data and answer.headers and answer.headers.get("Status") == "503":
        raise NoResponders(f"no stream takes {message.subject}")
    return stored(answer.data)


def _headers(message: Outgoing) -> Mapping[str, str]:
    return {**message.headers, MESSAGE_ID: message.message_id} if message.message_id else message.headers


def _may_repeat(error: StreamError, message: Outgoing) -> bool:
    """What was surely not stored may be sent again; what may have been, only under an ID."""
    match error:
        case Unreachable(sent=sent):
            return bool(message.message_id) or not sent
        case NoResponders():
            return True
    return False
