"""Consuming: each message handled by one at a time, for as long as that takes, until it is done or given up.

- A delivery is a lease. While its handler runs it is extended; if the process dies it ends, and another one delivers.
- Giving up is decided when a message is received, from the number of its deliveries, because a process that dies of a
  message cannot say so. What `abandon` makes of it is published, and only then is it taken from the stream.
- An acknowledgement may be lost: a message that was done can come again. Handlers must bear it.
- Told to stop, a consumption begins nothing more, ends what it has, and hands back the rest at once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TypeAlias

import msgspec
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import (
    NO_HEADERS,
    Delivery,
    Done,
    GiveUp,
    Outcome,
    Outgoing,
    Retry,
    decided,
    refused_at_receipt,
)
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.publisher import MESSAGE_ID, Publisher
from gpu_runtime.jetstream.puller import Patience, Puller
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

Handler: TypeAlias = Callable[[Delivery], Awaitable[Outcome]]
Abandon: TypeAlias = Callable[[Delivery, GiveUp], Sequence[Outgoing]]
"""What is published of a message that is given up: its dead letter, and whatever else must be known of its end."""

ACK, NAK, TERM, IN_PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"


@dataclass(frozen=True)
class Policy:
    at_once: int = 16
    """How many messages are handled at the same time."""
    attempts: int | None = 5
    """How often a message is tried. None: for ever."""
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=60.0))
    """The time between tries, where the handler does not say it."""
    patience: Patience = field(default_factory=Patience)


@dataclass(eq=False)
class _Held:
    """A delivery in hand."""

    delivery: Delivery
    reply: str
    """Where to answer: to the last delivery, if the same message came again."""


class Consumption:
    def __init__(
        self,
        publisher: Publisher,
        spec: ConsumerSpec,
        handler: Handler,
        abandon: Abandon,
        policy: Policy | None = None,
    ) -> None:
        self.policy = policy or Policy()
        self._connection: Connection = publisher.connection
        self._publisher, self._spec, self._handler, self._abandon = publisher, spec, handler, abandon
        self._held: dict[tuple[int, datetime], _Held] = {}
        self._emptied = asyncio.Event()
        self._stopping: asyncio.Event = asyncio.Event()
        self._paused = False
        self._puller: Puller | None = None
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def in_flight(self) -> int:
        return len(self._held)

    def problem(self) -> str | None:
        """Why nothing comes, for readiness; None where all is well."""
        return self._puller.problem if self._puller else "consuming has not begun"

    def pause(self) -> None:
        """Take no more for now, at once. What is in hand goes on."""
        self._pausing(True)

    def resume(self) -> None:
        self._pausing(False)

    def _pausing(self, paused: bool) -> None:
        if paused != self._paused:
            self._paused = paused
            if self._puller:
                self._puller.rest(paused)

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until told to stop, and return when everything in hand is settled.

        Cancelled, it ends at once, and what was in hand is handed back to be delivered again.
        """
        self._puller = Puller(self._connection, self._spec, self.policy.at_once, self._received, self.policy.patience)
        self._puller.rest(self._paused)
        self._stopping = stopping
        async with asyncio.TaskGroup() as self._tasks:
            helpers = [self._tasks.create_task(self._extend()), self._tasks.create_task(self._stop_pulling())]
            await self._puller.run(stopping)
            while self._held:
                self._emptied.clear()
                await self._emptied.wait()
            for helper in helpers:
                helper.cancel()

    async def _stop_pulling(self) -> None:
        await self._stopping.wait()
        if self._puller:
            self._puller.wake()

    def _received(self, message: Msg) -> None:
        if self._tasks is None or self._puller is None:
            return
        delivery = _delivery(message)
        if held := self._held.get(delivery.identity):
            held.reply = message.reply  # its lease ran out while we were cut off; it is being handled all the same
        elif self._stopping.is_set() or self._paused or len(self._held) >= self.policy.at_once:
            self._tasks.create_task(self._say(message.reply, NAK))
        else:
            self._held[delivery.identity] = held = _Held(delivery, message.reply)
            self._puller.taken(1)
            self._tasks.create_task(self._handle(held, self._puller))

    async def _handle(self, held: _Held, puller: Puller) -> None:
        delivery = held.delivery
        try:
            refused = refused_at_receipt(delivery.attempt, self.policy.attempts)
            outcome = refused or decided(await self._tried(delivery), delivery.attempt, self.policy.attempts)
            await self._settle(held, outcome)
        except asyncio.CancelledError:
            await self._say(held.reply, NAK, within=1)
            raise
        finally:
            del self._held[delivery.identity]
            puller.taken(-1)
            if not self._held:
                self._emptied.set()

    async def _tried(self, delivery: Delivery) -> Outcome:
        try:
            return await self._handler(delivery)
        except Exception as error:
            logger.exception("a handler failed", extra=_where(delivery))
            return Retry(f"{type(error).__name__}: {error}")

    async def _settle(self, held: _Held, outcome: Outcome) -> None:
        match outcome:
            case Done():
                await self._say(held.reply, ACK)
            case Retry(reason, delay):
                logger.info("delivered again later", extra=_where(held.delivery) | {"reason": reason})
                await self._say(held.reply, _nak(self._pause(held.delivery) if delay is None else delay))
            case GiveUp():
                await self._give_up(held, outcome)

    async def _give_up(self, held: _Held, outcome: GiveUp) -> None:
        """Keep it elsewhere first: if that fails, the message stays where it is and is received again."""
        logger.warning("given up", extra=_where(held.delivery) | {"reason": outcome.reason})
        try:
            for message in self._abandon(held.delivery, outcome):
                await self._publisher.publish(message)
        except Exception:
            logger.exception("what was given up could not be kept", extra=_where(held.delivery))
            await self._say(held.reply, _nak(self._pause(held.delivery)))
        else:
            await self._say(held.reply, TERM)

    def _pause(self, delivery: Delivery) -> float:
        return self.policy.backoff.delay(delivery.attempt)

    async def _say(self, reply: str, what: bytes, within: float | None = None) -> None:
        """Answer a delivery. An answer that cannot be sent before the lease ends is not worth sending."""
        try:
            await self._connection.publish(reply, what, within=within or self._spec.ack_wait)
        except StreamError as error:
            logger.warning("an answer to a delivery was lost", extra={"answer": what.decode(), "error": str(error)})

    async def _extend(self) -> None:
        """Keep the leases of all that is in hand."""
        while True:
            await asyncio.sleep(self._spec.ack_wait / 3)
            for held in tuple(self._held.values()):
                if self._connection.connected:
                    await self._say(held.reply, IN_PROGRESS)


def _delivery(message: Msg) -> Delivery:
    about = message.metadata
    return Delivery(
        subject=message.subject,
        data=message.data,
        headers=message.headers or NO_HEADERS,
        stream=about.stream,
        sequence=about.sequence.stream,
        attempt=about.num_delivered,
        stored_at=about.timestamp,
    )


def _nak(delay: float) -> bytes:
    return NAK + b" " + msgspec.json.encode({"delay": nanoseconds(delay)}) if delay > 0 else NAK


def _where(delivery: Delivery) -> dict[str, object]:
    return {
        "subject": delivery.subject,
        "sequence": delivery.sequence,
        "attempt": delivery.attempt,
        "messageID": delivery.headers.get(MESSAGE_ID, ""),
    }
