"""Dead letter: a message that a consumer gave up on, whole, with the reason. It can be looked at and sent again."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES, truncate_text
from gpu_runtime.contract.messages.message_codec import Instant, Message, encode
from gpu_runtime.contract.messages.result import Failure
from gpu_runtime.contract.messages.subjects import BadSubject, Stream, Subjects
from gpu_runtime.jetstream.delivery import Delivery, OutgoingMessage

UNKNOWN_REQUEST_ID = "unknown"
"""Stands for the requestID where the subject does not say it."""

MAX_DEAD_LETTER_DATA_BYTES = MAX_PAYLOAD_BYTES * 4 // 3 + 32 * 1024
"""How much of a message its dead letter holds: as much as any message has that keeps to the limits."""

MAX_DEAD_LETTER_HEADERS_BYTES = 32 * 1024
"""Bytes of its headers, as JSON. Those of messages that keep to the limits are far below it."""


class DeadLetter(Message, frozen=True, kw_only=True):
    id: str
    """Names the dead letter: the queue and the message's number in it."""

    source: Stream
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

    delivery_count: Annotated[int, Meta(ge=0)]
    """How often it was delivered."""

    published_at: Instant
    """When the queue got it."""

    dead_lettered_at: Instant
    """When it was given up."""


@dataclass(frozen=True)
class DeadLetterBuilder:
    """Those of one queue."""

    subjects: Subjects
    source: Stream

    def build(self, delivery: Delivery, failure: Failure, now: datetime, invocation_id: str = "") -> DeadLetter:
        """One that fits into a message, whatever somebody put into the queue: else it could never be given up."""
        size = len(delivery.data)
        cut = f" (it has {size} bytes; this is their beginning)" if size > MAX_DEAD_LETTER_DATA_BYTES else ""
        return DeadLetter(
            id=f"{self.source}-{delivery.sequence}",
            source=self.source,
            serverless_request_id=self._request_id(delivery.subject),
            invocation_id=invocation_id,
            subject=delivery.subject,
            headers=_headers_within_limit(delivery.headers),
            data=delivery.data[:MAX_DEAD_LETTER_DATA_BYTES],
            failure_class=failure.failure_class,
            reason=truncate_text(failure.message) + cut,
            delivery_count=delivery.delivery_count,
            published_at=delivery.published_at,
            dead_lettered_at=now,
        )

    def to_outgoing(self, letter: DeadLetter) -> OutgoingMessage:
        """The dead letter as it is published. A second one of the same message, after a crash in between, is none."""
        subject = self.subjects.dead_letter(self.source, letter.serverless_request_id)
        return OutgoingMessage(
            subject, encode(letter), message_id=f"dead-{letter.id}-{letter.published_at.timestamp():.3f}"
        )

    def _request_id(self, subject: str) -> str:
        try:
            return self.subjects.parse(subject).request_id
        except BadSubject:
            return UNKNOWN_REQUEST_ID


def _headers_within_limit(headers: Mapping[str, str]) -> dict[str, str]:
    kept = dict(headers)
    return kept if len(msgspec.json.encode(kept)) <= MAX_DEAD_LETTER_HEADERS_BYTES else {}
