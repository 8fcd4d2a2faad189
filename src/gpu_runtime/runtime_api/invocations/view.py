"""An invocation as callers see it, at every stage and after its end. Pure."""

import base64
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType, field

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, is_json
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordState
from gpu_runtime.contract.messages.message_codec import Instant
from gpu_runtime.contract.messages.result import Failure, Result, Timings
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.invocations.requests import InvocationState

PayloadEncoding = Literal["json", "base64"]


class FailureView(View, frozen=True, kw_only=True):
    """Why an invocation did not succeed."""

    failure_class: FailureClass = field(name="class")
    """Why, as one word for programs."""

    message: str
    """Why, as a sentence for people."""


class TimingsView(View, frozen=True, kw_only=True):
    """When it came how far. What did not happen, or is not known yet, is not said."""

    enqueued_at: Instant | None = None
    """When it was accepted."""

    dispatched_at: Instant | None = None
    """When it was handed to the function's workers."""

    started_at: Instant | None = None
    """When a worker began it, for the last time."""

    finished_at: Instant | None = None
    """When it ended."""


class InvocationView(View, frozen=True, kw_only=True):
    """One call of a function."""

    invocation_id: str = field(name="invocationID")
    """The caller's name for the call, or the one that was made."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The function: its serverless.requestID."""

    state: InvocationState
    """queued, dispatched (it waits for a worker), running, or how it ended: succeeded, failed, expired, dead_lettered
    or cancelled."""

    cancel_requested: bool = False
    """Whether it was taken back and has not ended yet. If its answer was there before, it still ends with that."""

    deadline: Instant | None = None
    """After this moment its answer does not count any more. Said until it ends."""

    failure: FailureView | None = None
    """Why it did not succeed."""

    status_code: int | None = None
    """What the function's framework answered, as HTTP has it."""

    content_type: str | None = None
    """What the payload is."""

    payload: Raw | UnsetType = UNSET
    """What the function answered. A list leaves it out."""

    payload_encoding: PayloadEncoding | None = None
    """json: the payload is the JSON value that the function answered. base64: a string with the bytes as base64."""

    body_bytes: int | None = None
    """How much the function answered."""

    body_truncated: bool = False
    """Whether the payload is only the beginning of that."""

    result_expired: bool = False
    """Whether it has ended and its result is kept no longer."""

    timings: TimingsView
    """When it came how far."""

    worker: str | None = None
    """The unit that runs it, or ran it last."""

    attempts: int | None = None
    """How often a worker began it. Said when it has ended."""


def record_view(invocation_id: str, record: InvocationRecord) -> InvocationView:
    """From the record alone: how far it has come, and of one that ended how, but without its result."""
    ended = record.state is RecordState.TERMINAL
    return InvocationView(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        state=state_of(record),
        cancel_requested=record.cancelled and not ended,
        deadline=None if ended else record.deadline,
        timings=TimingsView(enqueued_at=record.enqueued_at, finished_at=record.updated_at if ended else None),
        worker=record.worker or None,
    )


def message_view(invocation: Invocation, state: InvocationState) -> InvocationView:
    """From a message in a queue, where there is no record of it any more."""
    return InvocationView(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        state=state,
        deadline=invocation.deadline,
        timings=TimingsView(enqueued_at=invocation.enqueued_at),
    )


def result_view(result: Result) -> InvocationView:
    payload, encoding = encode_payload(result.body, result.content_type, whole=not result.body_truncated)
    answered = result.status_code is not None or bool(result.content_type or result.body)
    return InvocationView(
        invocation_id=result.invocation_id,
        serverless_request_id=result.serverless_request_id,
        state=InvocationState(result.state.value),
        failure=_failure_view(result.failure),
        status_code=result.status_code,
        content_type=result.content_type or None,
        payload=payload,
        payload_encoding=encoding,
        body_bytes=result.body_bytes if answered else None,
        body_truncated=result.body_truncated,
        timings=_timings_view(result.timings),
        worker=result.worker or None,
        attempts=result.attempts,
    )


def state_of(record: InvocationRecord) -> InvocationState:
    if record.state is not RecordState.TERMINAL:
        return InvocationState(record.state.value)
    # A terminal record says how it ended. One that does not was not written by us.
    return InvocationState(record.result_state.value) if record.result_state else InvocationState.FAILED


def encode_payload(
    body: bytes, content_type: str, *, whole: bool = True
) -> tuple[Raw | UnsetType, PayloadEncoding | None]:
    """Bytes as they can stand in an answer: JSON as it is where it is JSON, everything else as base64."""
    if not body:
        return UNSET, None
    if whole and is_json(content_type) and _is_valid_json(body):
        return Raw(body), "json"
    return Raw(msgspec.json.encode(base64.b64encode(body).decode())), "base64"


def _is_valid_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):  # no JSON, no UTF-8, or a number that nobody can read
        return False
    return True


def _failure_view(failure: Failure | None) -> FailureView | None:
    return FailureView(failure_class=failure.failure_class, message=failure.message) if failure else None


def _timings_view(timings: Timings) -> TimingsView:
    return TimingsView(
        enqueued_at=timings.enqueued_at,
        dispatched_at=timings.dispatched_at,
        started_at=timings.started_at,
        finished_at=timings.finished_at,
    )
