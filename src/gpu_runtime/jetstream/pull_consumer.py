"""Consumes a stream: runs a handler for each delivery, and acknowledges or dead-letters the message.

- A delivery is a lease of `ack_wait_seconds`. While the handler runs, the consumer extends the lease with in-progress
  acknowledgements. If the process dies, the lease expires and the server redelivers the message to another process.
- The consumer decides whether to dead-letter a message when it receives the message. It uses the delivery count. It
  cannot wait for the handler to fail: a message may crash the process, and then the process cannot report the failure.
- The consumer first calls `on_dead_letter`, and only then removes the message from the stream.
- An acknowledgement may be lost, so the server may redeliver a message that was handled. Handlers must be idempotent.
- After a stop, the consumer starts no more handlers, waits for the running handlers, and naks all other deliveries
  immediately.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
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
    dead_letter_if_exhausted,
    limit_deliveries,
)
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import MESSAGE_ID_HEADER
from gpu_runtime.jetstream.puller import Puller, PullLimits, PullOptions
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

DeliveryHandler: TypeAlias = Callable[[Delivery], Awaitable[DeliveryOutcome]]
OnDeadLetter: TypeAlias = Callable[[Delivery, DeadLetterDelivery], Awaitable[AckDelivery | NakDelivery | None]]
"""Publishes the dead letter of a message. If the message needs no dead letter or must stay in the stream, it publishes
none and returns an ack or a nak."""

ACK, NAK, TERM, IN_PROGRESS = b"+ACK", b"-NAK", b"+TERM", b"+WPI"


@dataclass(frozen=True)
class ConsumeOptions:
    max_in_flight: int = 16
    """Maximum number of messages that are handled concurrently."""
    max_bytes_in_flight: int | None = None
    """Maximum size of all messages that are handled concurrently. None: no limit."""
    max_deliveries: int | None = 5
    """Number of deliveries after which the consumer dead-letters a message. None: no limit."""
    backoff: Backoff = field(default_factory=lambda: Backoff(initial_seconds=1.0, max_seconds=60.0))
    """Delay before a redelivery if the handler does not return a delay."""
    pull_options: PullOptions = field(default_factory=PullOptions)


@dataclass(eq=False)
class _InFlightDelivery:
    """A delivery whose handler is running."""

    delivery: Delivery
    ack_subject: str
    """The subject for acknowledgements. If the server redelivers the message while the handler runs, this is the
    subject of the last delivery."""


class PullConsumer:
    def __init__(
        self,
        connection: NatsConnection,
        spec: ConsumerSpec,
        handler: DeliveryHandler,
        on_dead_letter: OnDeadLetter,
        options: ConsumeOptions | None = None,
    ) -> None:
        self.options = options or ConsumeOptions()
        self._connection = connection
        self._spec, self._handler, self._on_dead_letter = spec, handler, on_dead_letter
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
        """Return why the consumer gets no messages, for the readiness probe. Return None if pulling works."""
        return self._puller.problem if self._puller else "the consumer has not started"

    def set_paused(self, paused: bool) -> None:
        """Pause or resume. During a pause, the consumer accepts no messages. Running handlers continue."""
        if paused != self._paused:
            self._paused = paused
            if self._puller:
                self._puller.set_paused(paused)

    async def run(self, stopping: asyncio.Event) -> None:
        """Consume until `stopping` is set, and return when all running handlers have ended.

        If this method is cancelled, it cancels the handlers and naks their messages, so that the server redelivers
        them.
        """
        self._puller = Puller(
            self._connection,
            self._spec,
            PullLimits(self.options.max_in_flight, self.options.max_bytes_in_flight),
            self._on_message,
            self.options.pull_options,
        )
        self._puller.set_paused(self._paused)
        self._stopping = stopping
        async with asyncio.TaskGroup() as self._tasks:
            background = [
                self._tasks.create_task(self._extend_ack_wait()),
                self._tasks.create_task(self._stop_pulling()),
            ]
            await self._puller.run(stopping)
            while self._in_flight:
                self._idle.clear()
                await self._idle.wait()
            for task in background:
                task.cancel()

    async def _stop_pulling(self) -> None:
        await self._stopping.wait()
        if self._puller:
            self._puller.wake()

    def _on_message(self, message: Msg) -> None:
        if self._tasks is None or self._puller is None:
            return
        delivery = _delivery_from(message)
        if running := self._in_flight.get(delivery.message_key):
            # The lease expired while the connection was lost, so the server redelivered the message. The handler still
            # runs. Its outcome acknowledges the new delivery.
            running.ack_subject = message.reply
        elif self._stopping.is_set() or self._paused or len(self._in_flight) >= self.options.max_in_flight:
            self._tasks.create_task(self._send_ack(message.reply, NAK))
        else:
            self._in_flight[delivery.message_key] = started = _InFlightDelivery(delivery, message.reply)
            self._puller.adjust_in_flight(1, len(delivery.data))
            self._tasks.create_task(self._handle(started, self._puller))

    async def _handle(self, running: _InFlightDelivery, puller: Puller) -> None:
        delivery = running.delivery
        try:
            exhausted = dead_letter_if_exhausted(delivery.delivery_count, self.options.max_deliveries)
            outcome = exhausted or limit_deliveries(
                await self._call_handler(delivery), delivery.delivery_count, self.options.max_deliveries
            )
            await self._acknowledge(running, outcome)
        except asyncio.CancelledError:
            await self._send_ack(running.ack_subject, NAK, timeout_seconds=1)
            raise
        finally:
            del self._in_flight[delivery.message_key]
            puller.adjust_in_flight(-1, -len(delivery.data))
            if not self._in_flight:
                self._idle.set()

    async def _call_handler(self, delivery: Delivery) -> DeliveryOutcome:
        try:
            return await self._handler(delivery)
        except Exception as error:
            logger.exception(
                "message handler raised an unexpected exception; the process will nak or dead-letter the message",
                extra=self._log_fields(delivery),
            )
            return NakDelivery(f"{type(error).__name__}: {error}")

    async def _acknowledge(self, running: _InFlightDelivery, outcome: DeliveryOutcome) -> None:
        match outcome:
            case AckDelivery():
                await self._send_ack(running.ack_subject, ACK)
            case NakDelivery():
                await self._nak(running, outcome)
            case DeadLetterDelivery():
                await self._dead_letter(running, outcome)

    async def _dead_letter(self, running: _InFlightDelivery, outcome: DeadLetterDelivery) -> None:
        """Publish the dead letter, then remove the message from the stream.

        If publishing fails, nak the message, so that the server redelivers it.
        """
        fields = self._log_fields(running.delivery) | {"reason": outcome.reason}
        try:
            instead = await self._on_dead_letter(running.delivery, outcome)
        except Exception as error:
            logger.exception("dead-lettering failed; JetStream will redeliver the message", extra=fields)
            instead = NakDelivery(f"{type(error).__name__}: {error}")
        if instead is not None:
            await self._acknowledge(running, instead)
        else:
            logger.warning("message dead-lettered; JetStream will not redeliver the message", extra=fields)
            await self._send_ack(running.ack_subject, TERM)

    async def _nak(self, running: _InFlightDelivery, nak: NakDelivery) -> None:
        fields = self._log_fields(running.delivery) | {"reason": nak.reason}
        logger.info("message nacked; JetStream will redeliver the message", extra=fields)
        delay = self.options.backoff.delay(running.delivery.delivery_count) if nak.delay is None else nak.delay
        payload = NAK + b" " + msgspec.json.encode({"delay": nanoseconds(delay)}) if delay > 0 else NAK
        await self._send_ack(running.ack_subject, payload)

    async def _send_ack(self, ack_subject: str, ack: bytes, timeout_seconds: float | None = None) -> None:
        """Send an acknowledgement. The default timeout is the ack wait: a later acknowledgement has no effect."""
        timeout_seconds = timeout_seconds or self._spec.ack_wait_seconds
        try:
            await self._connection.publish(ack_subject, ack, timeout_seconds=timeout_seconds)
        except JetStreamError as error:
            logger.warning(
                "acknowledgement was not sent; JetStream may redeliver the message",
                extra={
                    "stream": self._spec.stream,
                    "consumer": self._spec.name,
                    "subject": ack_subject,
                    "ack": ack.decode(),
                    "error": str(error),
                },
            )

    async def _extend_ack_wait(self) -> None:
        """Extend the leases of all messages in flight."""
        while True:
            await asyncio.sleep(self._spec.ack_extension_seconds)
            for running in tuple(self._in_flight.values()):
                if self._connection.connected:
                    await self._send_ack(running.ack_subject, IN_PROGRESS)

    def _log_fields(self, delivery: Delivery) -> dict[str, object]:
        return {
            "stream": delivery.stream,
            "consumer": self._spec.name,
            "subject": delivery.subject,
            "sequence": delivery.sequence,
            "delivery_count": delivery.delivery_count,
            "message_id": delivery.headers.get(MESSAGE_ID_HEADER, ""),
        }


def _delivery_from(message: Msg) -> Delivery:
    metadata = message.metadata
    return Delivery(
        subject=message.subject,
        data=message.data,
        headers=message.headers or NO_HEADERS,
        stream=metadata.stream,
        sequence=metadata.sequence.stream,
        delivery_count=metadata.num_delivered,
        published_at=metadata.timestamp,
    )
