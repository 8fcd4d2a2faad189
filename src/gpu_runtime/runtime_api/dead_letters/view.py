"""A dead letter as operators see it. Pure."""

from msgspec import UNSET, Raw, UnsetType, field

from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import JSON_CONTENT_TYPE
from gpu_runtime.contract.messages.message_codec import Instant
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.invocations.view import PayloadEncoding, encode_payload


class DeadLetterView(View, frozen=True, kw_only=True):
    """A message that a consumer gave up on."""

    id: str
    """Names the dead letter: the queue and the message's number in it."""

    source: Stream
    """The queue that it was taken from."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The function: its serverless.requestID; or unknown."""

    invocation_id: str | None = field(default=None, name="invocationID")
    """The invocation, where the message could be read as far."""

    failure_class: FailureClass = field(name="class")
    """Why, as one word for programs."""

    reason: str
    """Why, as a sentence for people."""

    delivery_count: int
    """How often it was delivered."""

    published_at: Instant
    """When the queue got it."""

    dead_lettered_at: Instant
    """When it was given up."""

    subject: str
    """Where it was sent."""

    headers: dict[str, str] = field(default_factory=dict)
    """With which headers. A list leaves them out."""

    message: Raw | UnsetType = UNSET
    """The message itself. A list leaves it out."""

    message_encoding: PayloadEncoding | None = None
    """json: the message is the JSON value that was sent. base64: a string with the bytes as base64."""


class RedriveView(View, frozen=True, kw_only=True):
    """A dead letter that was sent again."""

    id: str
    """The dead letter, which is gone."""

    source: Stream
    """The queue that it came from."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The function."""

    invocation_id: str | None = field(default=None, name="invocationID")
    """Under which invocationID it goes on. An invocation has exactly one end, and this one had come to it: so it is
    run again under another ID. A result that was sent again keeps its own."""


def dead_letter_view(letter: DeadLetter, *, include_message: bool) -> DeadLetterView:
    message, encoding = encode_payload(letter.data, JSON_CONTENT_TYPE) if include_message else (UNSET, None)
    return DeadLetterView(
        id=letter.id,
        source=letter.source,
        serverless_request_id=letter.serverless_request_id,
        invocation_id=letter.invocation_id or None,
        failure_class=letter.failure_class,
        reason=letter.reason,
        delivery_count=letter.delivery_count,
        published_at=letter.published_at,
        dead_lettered_at=letter.dead_lettered_at,
        subject=letter.subject,
        headers=letter.headers if include_message else {},
        message=message,
        message_encoding=encoding,
    )
