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
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import (
    NO_HEADERS,
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
    OutgoingMessage,
    dead_letter_if_exhausted,
    limit_deliveries,
)
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import MESSAGE_ID_HEADER, Publisher
from gpu_runtime.jetstream.puller import Puller, PullOptions
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

DeliveryHandler: TypeAlias = Callable[[Delivery], Awaitable[DeliveryOutcome]]
OnDeadLetter: TypeAlias = Callable[[Delivery, DeadLetterDelivery], Sequence[OutgoingMessage]]
"""What is published of a message that is given up: its dead letter, and whatever else must be known of its end."""

ACK, NAK, TERM, IN_PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"


@dataclass(frozen=True)
class ConsumeOptions:
    max_in_flight: int = 16
    """How many messages are handled at the same time."""
    max_deliveries: int | None = 5
    """How often a message is tried. None: for ever."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=1.0, max_seconds=60.0))
    """The time between tries, where the handler does not say it."""
    pull_options: PullOptions = field(default_factory=PullOptions)


@dataclass(eq=False)
class _InFlightDelivery:
    """A delivery in hand."""

    delivery: Delivery
    ack_subject: str
    """Where to answer: to the last delivery, if the same message came again."""


class PullConsumer:
    def __init__(
        self,
        publisher: Publisher,
        spec: ConsumerSpec,
        handler: DeliveryHandler,
        on_dead_letter: OnDeadLetter,
        options: ConsumeOptions | None = None,
    ) -> None:
        self.options = options or ConsumeOptions()
        self._connection: NatsConnection = publisher.connection
        self._publisher, self._spec, self._handler, self._on_dead_letter = publisher, spec, handler, on_dead_letter
        self._in_flight: dict[tuple[int, datetime], _InFlightDelivery] = {}
        self._idle = asyncio.Event()
        self._stopping: asyncio.Event = asyncio.Event()
        self._paused = False
        self._puller: Puller | None = None
        self._tasks: asyncio.TaskGroup | None = None

    @property
    def in_flight(self) -> int:
        return len(self._in_flight)

    def problem(self) -> str | None:
        """Why nothing comes, for readiness; None where all is well."""
        return self._puller.problem if self._puller else "consuming has not begun"

    def pause(self) -> None:
        """Take no more for now, at once. What is in hand goes on."""
        self._set_paused(True)

    def resume(self) -> None:
        self._set_paused(False)

    def _set_paused(self, paused: bool) -> None:
        if paused != self._paused:
            self._paused = paused
            if self._puller:
                self._puller.set_paused(paused)

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until told to stop, and return when everything in hand is settled.

        Cancelled, it ends at once, and what was in hand is handed back to be delivered again.
        """
        self._puller = Puller(
            self._connection, self._spec, self.options.max_in_flight, self._on_message, self.options.pull_options
        )
        self._puller.set_paused(self._paused)
        self._stopping = stopping
        async with asyncio.TaskGroup() as self._tasks:
            helpers = [self._tasks.create_task(self._extend_ack_wait()), self._tasks.create_task(self._stop_pulling())]
            await self._puller.run(stopping)
            while self._in_flight:
                self._idle.clear()
                await self._idle.wait()
            for helper in helpers:
                helper.cancel()

    async def _stop_pulling(self) -> None:
        await self._stopping.wait()
        if self._puller:
            self._puller.wake()

    def _on_message(self, message: Msg) -> None:
        if self._tasks is None or self._puller is None:
            return
        delivery = _delivery_from(message)
        if held := self._in_flight.get(delivery.message_key):
            held.ack_subject = (
                message.reply
            )  # its lease ran out while we were cut off; it is being handled all the same
        elif self._stopping.is_set() or self._paused or len(self._in_flight) >= self.options.max_in_flight:
            self._tasks.create_task(self._send_ack(message.reply, NAK))
        else:
            self._in_flight[delivery.message_key] = held = _InFlightDelivery(delivery, message.reply)
            self._puller.adjust_in_flight(1)
            self._tasks.create_task(self._handle(held, self._puller))

    async def _handle(self, held: _InFlightDelivery, puller: Puller) -> None:
        delivery = held.delivery
        try:
            refused = dead_letter_if_exhausted(delivery.delivery_count, self.options.max_deliveries)
            outcome = refused or limit_deliveries(
                await self._call_handler(delivery), delivery.delivery_count, self.options.max_deliveries
            )
            await self._acknowledge(held, outcome)
        except asyncio.CancelledError:
            await self._send_ack(held.ack_subject, NAK, timeout_seconds=1)
            raise
        finally:
            del self._in_flight[delivery.message_key]
            puller.adjust_in_flight(-1)
            if not self._in_flight:
                self._idle.set()

    async def _call_handler(self, delivery: Delivery) -> DeliveryOutcome:
        try:
            return await self._handler(delivery)
        except Exception as error:
            logger.exception("a handler failed", extra=_log_fields(delivery))
            return NakDelivery(f"{type(error).__name__}: {error}")

    async def _acknowledge(self, held: _InFlightDelivery, outcome: DeliveryOutcome) -> None:
        match outcome:
            case AckDelivery():
                await self._send_ack(held.ack_subject, ACK)
            case NakDelivery(reason, delay):
                logger.info("delivered again later", extra=_log_fields(held.delivery) | {"reason": reason})
                await self._send_ack(
                    held.ack_subject, _nak_payload(self._redelivery_delay(held.delivery) if delay is None else delay)
                )
            case DeadLetterDelivery():
                await self._dead_letter(held, outcome)

    async def _dead_letter(self, held: _InFlightDelivery, outcome: DeadLetterDelivery) -> None:
        """Keep it elsewhere first: if that fails, the message stays where it is and is received again."""
        logger.warning("given up", extra=_log_fields(held.delivery) | {"reason": outcome.reason})
        try:
            for message in self._on_dead_letter(held.delivery, outcome):
                await self._publisher.publish(message)
        except Exception:
            logger.exception("what was given up could not be kept", extra=_log_fields(held.delivery))
            await self._send_ack(held.ack_subject, _nak_payload(self._redelivery_delay(held.delivery)))
        else:
            await self._send_ack(held.ack_subject, TERM)

    def _redelivery_delay(self, delivery: Delivery) -> float:
        return self.options.backoff.delay(delivery.delivery_count)

    async def _send_ack(self, reply: str, what: bytes, timeout_seconds: float | None = None) -> None:
        """Answer a delivery. An answer that cannot be sent before the lease ends is not worth sending."""
        try:
            await self._connection.publish(reply, what, timeout_seconds=timeout_seconds or self._spec.ack_wait_seconds)
        except JetStreamError as error:
            logger.warning("an answer to a delivery was lost", extra={"answer": what.decode(), "error": str(error)})

    async def _extend_ack_wait(self) -> None:
        """Keep the leases of all that is in hand."""
        while True:
            await asyncio.sleep(self._spec.ack_wait_seconds / 3)
            for held in tuple(self._in_flight.values()):
                if self._connection.connected:
                    await self._send_ack(held.ack_subject, IN_PROGRESS)


def _delivery_from(message: Msg) -> Delivery:
    about = message.metadata
    return Delivery(
        subject=message.subject,
        data=message.data,
        headers=message.headers or NO_HEADERS,
        stream=about.stream,
        sequence=about.sequence.stream,
        delivery_count=about.num_delivered,
        published_at=about.timestamp,
    )


def _nak_payload(delay: float) -> bytes:
    return NAK + b" " + msgspec.json.encode({"delay": nanoseconds(delay)}) if delay > 0 else NAK


def _log_fields(delivery: Delivery) -> dict[str, object]:
    return {
        "subject": delivery.subject,
        "sequence": delivery.sequence,
        "attempt": delivery.delivery_count,
        "messageID": delivery.headers.get(MESSAGE_ID_HEADER, ""),
    }
