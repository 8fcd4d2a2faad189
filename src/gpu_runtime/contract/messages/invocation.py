"""Invocation: one call of a function, as it was accepted. It does not change on its way."""

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta, field

from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH, MAX_TIMEOUT_SECONDS
from gpu_runtime.contract.messages.message_codec import Instant, Message

JSON_CONTENT_TYPE = "application/json"
InvocationMode = Literal["async", "sync"]
InvocationID = Annotated[str, Meta(max_length=MAX_INVOCATION_ID_LENGTH)]
TimeoutSeconds = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)]


class Invocation(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")
    """The caller's name for the call, or one that was made for it."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The function: its requestID."""

    mode: InvocationMode = "async"
    """sync where the caller waits for the answer."""

    content_type: str = JSON_CONTENT_TYPE
    """What the body is."""

    headers: dict[str, str] = field(default_factory=dict)
    """Handed to the function as they are."""

    attributes: dict[str, str] = field(default_factory=dict)
    """The caller's own labels. The function sees them, the platform does not read them."""

    # One form for JSON and for everything else: the function gets bytes, and JSON that nobody decodes on the way keeps
    # its numbers as they were written.
    body: bytes = b""
    """What the function gets, byte by byte. On the wire it is base64."""

    enqueued_at: Instant | None = None
    """When it was accepted."""

    timeout_seconds: TimeoutSeconds
    """How long after its acceptance the answer still counts."""

    reply_to: str = ""
    """For sync: the subject on which the replica with the waiting caller listens."""

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)

    @property
    def deadline(self) -> Instant | None:
        return self.enqueued_at + timedelta(seconds=self.timeout_seconds) if self.enqueued_at else None

    @property
    def message_id(self) -> str:
        return self.invocation_id


def is_json(content_type: str) -> bool:
    kind = content_type.partition(";")[0].strip().lower()
    return kind == JSON_CONTENT_TYPE or kind.endswith("+json")
