"""Result: how an invocation ended. There is one for each that was accepted, and the first that is stored stands."""

from datetime import datetime
from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, InvocationID
from gpu_runtime.contract.messages.limits import MAX_PAYLOAD_BYTES, truncate_text
from gpu_runtime.contract.messages.message_codec import Instant, Message, MessagePart


class ResultState(StrEnum):
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"
    """Its time was over before there was an answer."""
    DEAD_LETTERED = "dead_lettered"
    """It was tried as often as it may be. The dead letter holds it, and can be sent again."""
    CANCELLED = "cancelled"


class Failure(MessagePart, frozen=True, kw_only=True):
    failure_class: FailureClass = field(name="class")
    message: str
    """For a person."""


class Timings(MessagePart, frozen=True, kw_only=True):
    """When it came how far. What did not happen is not said."""

    enqueued_at: Instant | None = None
    dispatched_at: Instant | None = None
    started_at: Instant | None = None
    finished_at: Instant


class Result(Message, frozen=True, kw_only=True):
    invocation_id: InvocationID = field(name="invocationID")
    serverless_request_id: str = field(name="serverlessRequestID")
    state: ResultState

    failure: Failure | None = None
    """Why it did not succeed. Always there where the state is not `succeeded`."""

    status_code: int | None = None
    """What the function's framework answered, as HTTP has it, if it answered."""

    content_type: str = ""
    """What the body is."""

    body: bytes = b""
    """What the function answered, byte by byte. On the wire it is base64."""

    body_truncated: bool = False
    """Whether the function answered more than that."""

    body_bytes: int = 0
    """How much the function answered."""

    timings: Timings
    worker: str = ""
    """The unit that ran it."""

    attempts: Annotated[int, Meta(ge=0)] = 0
    """How often a worker began it."""

    @property
    def message_id(self) -> str:
        return f"{self.invocation_id}.{self.state}"


def with_body(result: Result, content_type: str, body: bytes, limit: int = MAX_PAYLOAD_BYTES) -> Result:
    """The result with what the function answered, or with its beginning and the truth about that."""
    return msgspec.structs.replace(
        result,
        content_type=content_type,
        body=body[:limit],
        body_truncated=len(body) > limit,
        body_bytes=len(body),
    )


def unsuccessful_result(
    invocation: Invocation, state: ResultState, failure: Failure, now: datetime, attempts: int = 0
) -> Result:
    """The end of an invocation for which there is no answer of its function."""
    return Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        state=state,
        failure=msgspec.structs.replace(failure, message=truncate_text(failure.message)),
        timings=Timings(enqueued_at=invocation.enqueued_at, finished_at=now),
        attempts=attempts,
    )
