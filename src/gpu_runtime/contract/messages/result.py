"""The result message: how an invocation ended.

Every accepted invocation gets a result. If several results are published, the result store stores only the first one.
"""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import InvocationID
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES
from gpu_runtime.contract.messages.message_codec import Instant, Message, MessagePart


class ResultState(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    """The deadline passed before the function returned a response."""
    DEAD_LETTERED = "dead_lettered"
    """The invocation reached the maximum number of attempts or deliveries. An operator can redrive its dead letter."""
    CANCELLED = "cancelled"


class Failure(MessagePart, frozen=True, kw_only=True):
    failure_class: FailureClass = field(name="class")
    message: str
    """The error message for people."""


class Timings(MessagePart, frozen=True, kw_only=True):
    """When the invocation reached each state. The time is None if the invocation did not reach the state."""

    enqueued_at: Instant | None = None
    dispatched_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant


class Result(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")
    serverless_request_id: str = field(name="serverlessRequestID")
    function_id: str = field(name="functionID")
    """The function that the invocation was for."""

    state: ResultState

    failure: Failure | None = None
    """Why the invocation did not succeed. Always set if the state is not `succeeded`."""

    status_code: int | None = None
    """The HTTP status of the framework's response. None if there was no response."""

    content_type: str = ""
    """The content type of the body."""

    body: bytes = b""
    """The response body of the function. The message contains it as base64."""

    body_truncated: bool = False
    """Whether the response body was larger than the limit, so that `body` is only its beginning."""

    body_bytes: int = 0
    """The size of the whole response body."""

    timings: Timings
    worker: str = ""
    """The name of the unit that ran the invocation."""

    attempts: Annotated[int, Meta(ge=0)] = 0
    """How many times a worker started the invocation."""


def with_body(result: Result, content_type: str, body: bytes, limit: int = MAX_PAYLOAD_BYTES) -> Result:
    """Return the result with the response body. If the body exceeds the limit, it is truncated and marked as such."""
    return msgspec.structs.replace(
        result,
        content_type=content_type,
        body=body[:limit],
        body_truncated=len(body) > limit,
        body_bytes=len(body),
    )
