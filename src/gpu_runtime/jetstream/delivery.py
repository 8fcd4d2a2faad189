"""Messages that handlers receive and publish, and the outcomes that a handler returns: ack, nak or dead-letter.

Pure data: nothing here connects to the server.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def parse_headers(raw: bytes) -> dict[str, str]:
    """Parse NATS headers in wire format. Lines that are not a header are ignored."""
    lines = raw.decode(errors="replace").split("\r\n")
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to publish."""

    subject: str
    data: bytes
    message_id: str = ""
    """If two messages with the same ID arrive within the duplicate window, the stream stores only the first one."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True)
class Delivery:
    """One delivery of a stream message to this process."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    stream: str
    sequence: int
    """The stream sequence of the message. It is the same in every delivery."""
    delivery_count: int
    """The number of this delivery, starting at 1. It restarts only if the consumer is deleted and re-created."""
    published_at: datetime

    @property
    def message_key(self) -> tuple[int, datetime]:
        """Identifies the message. The sequence alone does not: a re-created stream uses the same sequences again."""
        return self.sequence, self.published_at


@dataclass(frozen=True)
class AckDelivery:
    """The handler is done with the message; the server may delete it."""


@dataclass(frozen=True)
class NakDelivery:
    """Redeliver the message after `delay` seconds. None: the backoff of the consumer decides."""

    reason: str
    delay: float | None = None


@dataclass(frozen=True)
class DeadLetterDelivery:
    """A redelivery cannot succeed: publish a dead letter and remove the message."""

    reason: str
    failure_class: str = ""
    """The failure class that the handler chose. Empty: the handler chose none."""


DeliveryOutcome: TypeAlias = AckDelivery | NakDelivery | DeadLetterDelivery


def limit_deliveries(outcome: DeliveryOutcome, delivery_count: int, max_deliveries: int | None) -> DeliveryOutcome:
    """Return the outcome. If it is a nak of the last allowed delivery, return a dead letter instead."""
    if isinstance(outcome, NakDelivery) and max_deliveries is not None and delivery_count >= max_deliveries:
        return DeadLetterDelivery(f"dead-lettered after {delivery_count} deliveries; last failure: {outcome.reason}")
    return outcome


def dead_letter_if_exhausted(delivery_count: int, max_deliveries: int | None) -> DeadLetterDelivery | None:
    """Return a dead letter if this delivery exceeds the maximum number of deliveries, otherwise None.

    In that case, the last allowed delivery ended without an outcome.
    """
    if max_deliveries is not None and delivery_count > max_deliveries:
        return DeadLetterDelivery(
            f"dead-lettered after {max_deliveries} deliveries; the last one ended without an outcome"
        )
    return None
