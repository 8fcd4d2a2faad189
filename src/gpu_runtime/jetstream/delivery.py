"""Messages as handlers see them, and what a handler may answer. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from types import MappingProxyType
from typing import TypeAlias

NO_HEADERS: Mapping[str, str] = MappingProxyType({})


def parse_headers(raw: bytes) -> dict[str, str]:
    """Headers as they are sent, and as a stream keeps them. What is no header is left out."""
    lines = raw.decode(errors="replace").split("\r\n")
    return {name.strip(): value.strip() for name, colon, value in (line.partition(":") for line in lines) if colon}


@dataclass(frozen=True)
class OutgoingMessage:
    """A message to be published."""

    subject: str
    data: bytes
    message_id: str = ""
    """Sent twice under one ID within the stream's window, a message is stored once."""
    headers: Mapping[str, str] = field(default_factory=lambda: NO_HEADERS)


@dataclass(frozen=True)
class Delivery:
    """A message from a stream, for the so-manieth time."""

    subject: str
    data: bytes
    headers: Mapping[str, str]
    stream: str
    sequence: int
    """Its number in the stream: the same for every delivery of it."""
    delivery_count: int
    """Which delivery this is, counted from one. Only a consumer that is made again counts anew."""
    published_at: datetime

    @property
    def message_key(self) -> tuple[int, datetime]:
        """Of the message. A stream that was made anew has the same numbers again, for others."""
        return self.sequence, self.published_at


@dataclass(frozen=True)
class AckDelivery:
    """The message is dealt with and may go."""


@dataclass(frozen=True)
class NakDelivery:
    """Deliver it again after the delay; without one, after what the consumer's backoff says."""

    reason: str
    delay: float | None = None


@dataclass(frozen=True)
class DeadLetterDelivery:
    """No further delivery will help: keep it as a dead letter."""

    reason: str
    failure_class: str = ""
    """The handler's own word for the class of the failure."""


DeliveryOutcome: TypeAlias = AckDelivery | NakDelivery | DeadLetterDelivery


def limit_deliveries(outcome: DeliveryOutcome, attempt: int, attempts: int | None) -> DeliveryOutcome:
    """The outcome, with the last retry turned into giving up."""
    if isinstance(outcome, NakDelivery) and attempts is not None and attempt >= attempts:
        return DeadLetterDelivery(f"given up after {attempt} tries; the last one: {outcome.reason}")
    return outcome


def dead_letter_if_exhausted(attempt: int, attempts: int | None) -> DeadLetterDelivery | None:
    """What is given up before it is tried: its tries are used up, and the last one never came back to say so."""
    if attempts is not None and attempt > attempts:
        return DeadLetterDelivery(f"given up after {attempts} tries, of which the last one never came back")
    return None
