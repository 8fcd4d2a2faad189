"""Dead letter: a message that a consumer gave up on, whole, with the reason. It can be looked at and sent again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.limits import BODY_LIMIT, shortened
from gpu_runtime.contract.messages.message_codec import Instant, Message, encode
from gpu_runtime.contract.messages.result import Failure
from gpu_runtime.contract.messages.subjects import BadSubject, Queue, Subjects
from gpu_runtime.jetstream.delivery import Delivery, Outgoing

UNKNOWN = "unknown"
"""Stands for the requestID where the subject does not say it."""

DATA_LIMIT = BODY_LIMIT * 4 // 3 + 32 * 1024
"""How much of a message its dead letter holds: as much as any message has that keeps to the limits."""

HEADERS_LIMIT = 32 * 1024
"""Bytes of its headers, as JSON. Those of messages that keep to the limits are far below it."""


class DeadLetter(Message, frozen=True, kw_only=True):
    id: str
    """Names the dead letter: the queue and the message's number in it."""

    source: Queue
    """The queue it was taken from."""

    serverless_request_id: str = field(name="serverlessRequestID")
    invocation_id: str = field(default="", name="invocationID")
    """Where the consumer could read as far."""

    subject: str
    """The original message: where it was sent, with which headers, and its bytes as they were. Of one that is larger
    than any that keeps to the limits, the beginning."""
    headers: dict[str, str] = field(default_factory=dict)
    data: bytes

    failure_class: FailureClass = field(name="class")
    reason: str
    """Why, for a person."""

    attempts: Annotated[int, Meta(ge=0)]
    """How often it was delivered."""

    stored_at: Instant
    """When the queue got it."""

    dead_at: Instant
    """When it was given up."""


@dataclass(frozen=True)
class DeadLetters:
    """Those of one queue."""

    subjects: Subjects
    source: Queue

    def letter(self, delivery: Delivery, failure: Failure, now: datetime, invocation_id: str = "") -> DeadLetter:
        """One that fits into a message, whatever somebody put into the queue: else it could never be given up."""
        size = len(delivery.data)
        cut = f" (it has {size} bytes; this is their beginning)" if size > DATA_LIMIT else ""
        return DeadLetter(
            id=f"{self.source}-{delivery.sequence}",
            source=self.source,
            serverless_request_id=self._request_id(delivery.subject),
            invocation_id=invocation_id,
            subject=delivery.subject,
            headers=_fitting(delivery.headers),
            data=delivery.data[:DATA_LIMIT],
            failure_class=failure.failure_class,
            reason=shortened(failure.message) + cut,
            attempts=delivery.attempt,
            stored_at=delivery.stored_at,
            dead_at=now,
        )

    def outgoing(self, letter: DeadLetter) -> Outgoing:
        """The dead letter as it is published. A second one of the same message, after a crash in between, is none."""
        subject = self.subjects.dead_letter(self.source, letter.serverless_request_id)
        return Outgoing(subject, encode(letter), message_id=f"dead-{letter.id}-{letter.stored_at.timestamp():.3f}")

    def _request_id(self, subject: str) -> str:
        try:
            return self.subjects.parse(subject).request_id
        except BadSubject:
            return UNKNOWN


def _fitting(headers: Mapping[str, str]) -> dict[str, str]:
    kept = dict(headers)
    return kept if len(msgspec.json.encode(kept)) <= HEADERS_LIMIT else {}
