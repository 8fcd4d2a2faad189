"""The dead letter: a copy of a message that a consumer stopped retrying, with the reason.

Operators can inspect a dead letter and redrive it.
"""

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
"""The requestID of a dead letter whose subject has no valid requestID."""

MAX_DEAD_LETTER_DATA_BYTES = MAX_PAYLOAD_BYTES * 4 // 3 + 32 * 1024
"""The maximum number of bytes of the original message in a dead letter. A message within the size limits is not
truncated."""

MAX_DEAD_LETTER_HEADERS_BYTES = 32 * 1024
"""The maximum size of the original headers as JSON. The headers of messages within the limits are much smaller."""


class DeadLetter(Message, frozen=True, kw_only=True):
    id: str
    """The ID of the dead letter: the source stream and the stream sequence of the original message."""

    source: Stream
    """The stream that contained the original message."""

    serverless_request_id: str = field(name="serverlessRequestID")
    invocation_id: str = field(default="", name="invocationID")
    """Empty if the consumer could not decode the original message."""

    subject: str
    """The subject of the original message."""

    headers: dict[str, str] = field(default_factory=dict)
    """The headers of the original message. Empty if they exceed the limit."""

    data: bytes
    """The unchanged bytes of the original message. Truncated if they exceed the limit."""

    failure_class: FailureClass = field(name="class")
    reason: str
    """Why the message was dead-lettered, as a text for people."""

    delivery_count: Annotated[int, Meta(ge=0)]
    """The number of deliveries of the original message."""

    published_at: Instant
    """When the source stream stored the original message."""

    dead_lettered_at: Instant
    """When the consumer dead-lettered the message."""


@dataclass(frozen=True)
class DeadLetterBuilder:
    """Builds dead letters for messages of one stream."""

    subjects: Subjects
    source: Stream

    def build(self, delivery: Delivery, failure: Failure, now: datetime, invocation_id: str = "") -> DeadLetter:
        """Build a dead letter that fits into a NATS message, even if the original message exceeds the size limits.

        If the dead letter were too large, the consumer could not publish it, and JetStream would redeliver the original
        message forever.
        """
        size = len(delivery.data)
        truncated = (
            f" (the message has {size} bytes and is truncated here)" if size > MAX_DEAD_LETTER_DATA_BYTES else ""
        )
        return DeadLetter(
            id=f"{self.source}-{delivery.sequence}",
            source=self.source,
            serverless_request_id=self._request_id(delivery.subject),
            invocation_id=invocation_id,
            subject=delivery.subject,
            headers=_headers_within_limit(delivery.headers),
            data=delivery.data[:MAX_DEAD_LETTER_DATA_BYTES],
            failure_class=failure.failure_class,
            reason=truncate_text(failure.message) + truncated,
            delivery_count=delivery.delivery_count,
            published_at=delivery.published_at,
            dead_lettered_at=now,
        )

    def message(self, delivery: Delivery, failure: Failure, now: datetime, invocation_id: str = "") -> OutgoingMessage:
        """Build a dead letter and return the message that publishes it."""
        return self.to_outgoing(self.build(delivery, failure, now, invocation_id))

    def to_outgoing(self, letter: DeadLetter) -> OutgoingMessage:
        """Return the message that publishes the dead letter.

        The message ID is derived from the original message. If a consumer crashes after it has published the dead
        letter and before it has acknowledged the original message, the dead letter is published a second time. The
        stream ignores the second one, because both have the same message ID.
        """
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
    copy = dict(headers)
    return copy if len(msgspec.json.encode(copy)) <= MAX_DEAD_LETTER_HEADERS_BYTES else {}
