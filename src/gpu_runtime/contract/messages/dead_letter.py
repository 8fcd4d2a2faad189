"""The dead letter: a copy of a message that a consumer stopped retrying, with the reason.

Operators can inspect a dead letter and redrive it.
"""

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, MessageIDs
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES, truncate_text
from gpu_runtime.contract.messages.message_codec import Instant, Message, encode
from gpu_runtime.contract.messages.result import Failure, Result
from gpu_runtime.contract.messages.subjects import BadSubject, Stream, Subjects
from gpu_runtime.jetstream.delivery import Delivery, OutgoingMessage

UNKNOWN_ID = "unknown"
"""The functionID of a dead letter whose subject has no valid functionID, and the requestID of a dead letter whose
message could not be decoded."""

MAX_DEAD_LETTER_DATA_BYTES = MAX_PAYLOAD_BYTES * 4 // 3 + 32 * 1024
"""The maximum number of bytes of the original message in a dead letter. A message within the size limits is not
truncated."""

MAX_DEAD_LETTER_HEADERS_BYTES = 32 * 1024
"""The maximum size of the original headers as JSON. The headers of messages within the limits are much smaller."""


class DeadLetter(Message, frozen=True, kw_only=True):
    serverless_request_id: str = field(default=UNKNOWN_ID, name="serverlessRequestID")
    """The requestID in the original message. `unknown` if the consumer could not decode the message."""

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
    """Builds dead letters for messages of one stream.

    The subject of a dead letter names the source stream and the function. The content does not decide this, because the
    sender may be a worker. NATS permissions can limit the subjects of a worker, but not the content of its messages.
    """

    subjects: Subjects
    source: Stream
    message_ids: MessageIDs

    def build(
        self, delivery: Delivery, failure: Failure, now: datetime, decoded: Invocation | Result | None = None
    ) -> DeadLetter:
        """Build a dead letter that fits into a NATS message, even if the original message exceeds the size limits.

        `decoded` has the IDs of the original message. It is None if the consumer could not decode the message. If the
        dead letter were too large, the consumer could not publish it, and JetStream would redeliver the original
        message forever.
        """
        size = len(delivery.data)
        truncated = (
            f" (the message has {size} bytes and is truncated here)" if size > MAX_DEAD_LETTER_DATA_BYTES else ""
        )
        return DeadLetter(
            serverless_request_id=decoded.serverless_request_id if decoded else UNKNOWN_ID,
            invocation_id=decoded.invocation_id if decoded else "",
            subject=delivery.subject,
            headers=_headers_within_limit(delivery.headers),
            data=delivery.data[:MAX_DEAD_LETTER_DATA_BYTES],
            failure_class=failure.failure_class,
            reason=truncate_text(failure.message) + truncated,
            delivery_count=delivery.delivery_count,
            published_at=delivery.published_at,
            dead_lettered_at=now,
        )

    def message(
        self, delivery: Delivery, failure: Failure, now: datetime, decoded: Invocation | Result | None = None
    ) -> OutgoingMessage:
        """Build a dead letter and return the message that publishes it.

        The message ID is derived from the original message. If a consumer crashes after it has published the dead
        letter and before it has acknowledged the original message, the dead letter is published a second time. The
        stream ignores the second one, because both have the same message ID.
        """
        subject = self.subjects.dead_letter(self.source, self._function_id(delivery.subject))
        return OutgoingMessage(
            subject, encode(self.build(delivery, failure, now, decoded)), message_id=self._message_id(delivery)
        )

    def _message_id(self, delivery: Delivery) -> str:
        """The ID depends on the content, which no worker of another function knows."""
        ticket, content = delivery.headers.get(TICKET_HEADER, ""), hashlib.sha256(delivery.data).hexdigest()
        sequence, published_at = str(delivery.sequence), delivery.published_at.isoformat()
        return self.message_ids("dead-letter", self.source, ticket, sequence, published_at, content)

    def _function_id(self, subject: str) -> str:
        try:
            return self.subjects.parse(subject).function_id
        except BadSubject:
            return UNKNOWN_ID


def _headers_within_limit(headers: Mapping[str, str]) -> dict[str, str]:
    copy = dict(headers)
    return copy if len(msgspec.json.encode(copy)) <= MAX_DEAD_LETTER_HEADERS_BYTES else {}
