"""Converts dead letters into the JSON views of the API. Pure functions."""

from msgspec import UNSET, Raw, UnsetType, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import JSON_CONTENT_TYPE
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER
from gpu_runtime.contract.messages.message_codec import Instant
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.runtime_api.dead_letters.stored_letter import StoredDeadLetter
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.invocations.view import PayloadEncoding, encode_payload


class DeadLetterView(View, frozen=True, kw_only=True):
    """A message that a consumer dead-lettered."""

    id: str
    """The ID of the dead letter: its sequence in the stream of dead letters."""

    source: Stream
    """The stream that the message comes from."""

    function_id: str = field(name="functionID")
    """The ID that the platform gave to the function, or unknown if the subject of the message has no valid ID. A
    function that was deleted and created again has another ID."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The serverless.requestID of the function, or unknown if the message has no valid ticket."""

    invocation_id: str | None = field(default=None, name="invocationID")
    """The ID of the invocation. Omitted if the message has no valid ticket."""

    failure_class: FailureClass = field(name="class")
    """Why the message was dead-lettered, as a code for programs."""

    reason: str
    """Why the message was dead-lettered, as a text for people."""

    delivery_count: int
    """How many times JetStream delivered the message."""

    published_at: Instant
    """When the message was published to its stream."""

    dead_lettered_at: Instant
    """When the consumer dead-lettered the message."""

    subject: str
    """The NATS subject of the message."""

    headers: dict[str, str] = field(default_factory=dict)
    """The headers of the message, without its ticket. Lists omit them."""

    message: Raw | UnsetType = UNSET
    """The content of the message. Lists omit it."""

    message_encoding: PayloadEncoding | None = None
    """json: the message is the JSON value that was published. base64: the message is a base64 string of the bytes."""


class RedriveView(View, frozen=True, kw_only=True):
    """A dead letter that was redriven."""

    id: str
    """The ID of the dead letter. The dead letter is deleted."""

    source: Stream
    """The stream that the message comes from."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The serverless.requestID of the function."""

    invocation_id: str | None = field(default=None, name="invocationID")
    """The invocationID of the redriven message. A redriven invocation gets a new ID, because the old ID already has a
    result. A redriven result keeps its invocationID."""


def dead_letter_view(stored: StoredDeadLetter, *, include_message: bool) -> DeadLetterView:
    letter = stored.letter
    message, encoding = encode_payload(letter.data, JSON_CONTENT_TYPE) if include_message else (UNSET, None)
    headers = {name: value for name, value in letter.headers.items() if name != TICKET_HEADER}
    return DeadLetterView(
        id=stored.id,
        source=stored.source,
        function_id=stored.function_id,
        serverless_request_id=stored.serverless_request_id,
        invocation_id=stored.invocation_id,
        failure_class=letter.failure_class,
        reason=letter.reason,
        delivery_count=letter.delivery_count,
        published_at=letter.published_at,
        dead_lettered_at=letter.dead_lettered_at,
        subject=letter.subject,
        headers=headers if include_message else {},
        message=message,
        message_encoding=encoding,
    )
