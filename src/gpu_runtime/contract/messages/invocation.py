"""The invocation message: one call of a function. It does not change after the API has accepted it."""

from datetime import timedelta
from typing import Annotated, Literal

from msgspec import Meta, field

from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH, MAX_TIMEOUT_SECONDS
from gpu_runtime.contract.messages.message_codec import Instant, Message
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.contract.validation.values import matches

JSON_CONTENT_TYPE = "application/json"
InvocationMode = Literal["async", "sync"]
InvocationID = Annotated[str, Meta(max_length=MAX_INVOCATION_ID_LENGTH)]
TimeoutSeconds = Annotated[float, Meta(gt=0, le=MAX_TIMEOUT_SECONDS)]


INVOCATION_ID_PATTERN = "^[A-Za-z0-9_-]+$"
"""A valid token of a NATS subject and a valid key of a key-value bucket. UUIDs and ULIDs match."""


class Invocation(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")
    """The ID that the caller chose, or a generated one."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The requestID of the function."""

    function_id: str = field(default="", name="functionID")
    """The ID that the platform gave to the function. The subjects of the function contain this ID. It is empty until
    the API has found the function."""

    mode: InvocationMode = "async"
    """`sync` if the caller waits for the result."""

    content_type: str = JSON_CONTENT_TYPE
    """The content type of the body."""

    headers: dict[str, str] = field(default_factory=dict)
    """Headers for the function. The platform passes them on unchanged."""

    attributes: dict[str, str] = field(default_factory=dict)
    """Labels of the caller. The platform passes them to the function and does not interpret them."""

    # A JSON body is bytes, too: no process encodes the JSON again, so numbers keep the caller's notation.
    body: bytes = b""
    """The request body for the function. The message contains it as base64."""

    enqueued_at: Instant | None = None
    """When the API accepted the invocation."""

    timeout_seconds: TimeoutSeconds
    """The time from acceptance until the invocation expires."""

    reply_to: str = ""
    """For `sync`: the subject on which the API replica that serves the caller waits for the result."""

    @property
    def is_json(self) -> bool:
        return is_json(self.content_type)

    @property
    def deadline(self) -> Instant | None:
        return self.enqueued_at + timedelta(seconds=self.timeout_seconds) if self.enqueued_at else None


def is_json(content_type: str) -> bool:
    media_type = content_type.partition(";")[0].strip().lower()
    return media_type == JSON_CONTENT_TYPE or media_type.endswith("+json")


def invocation_id_errors(invocation_id: str) -> FieldErrors:
    at = "invocationID"
    if not invocation_id:
        yield FieldError(at, "is empty; choose an ID, or omit the field to get a generated ID")
    elif len(invocation_id) > MAX_INVOCATION_ID_LENGTH:
        yield FieldError(at, f"has {len(invocation_id)} characters; use at most {MAX_INVOCATION_ID_LENGTH}")
    elif not matches(INVOCATION_ID_PATTERN, invocation_id):
        yield FieldError(at, f"{invocation_id!r} is not an invocationID; use letters, digits, '-' and '_'")
