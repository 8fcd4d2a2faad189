"""Converts records, messages and results of invocations into the JSON view of the API. Pure functions."""

import base64
from typing import Literal

import msgspec
from msgspec import UNSET, Raw, UnsetType, field, structs

from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation, is_json
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.message_codec import Instant
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.runtime_api.http.route import View
from gpu_runtime.runtime_api.invocations.requests import InvocationState

PayloadEncoding = Literal["json", "base64"]


class FailureView(View, frozen=True, kw_only=True):
    """Why an invocation did not succeed."""

    failure_class: FailureClass = field(name="class")
    """The failure class, as a code for programs."""

    message: str
    """The reason, as a text for people."""


class TimingsView(View, frozen=True, kw_only=True):
    """The times of an invocation. A time is omitted if the event did not happen or its time is unknown."""

    enqueued_at: Instant | None = None
    """When the API accepted the invocation."""

    dispatched_at: Instant | None = None
    """When the activator dispatched the invocation to the workers of the function."""

    started_at: Instant | None = None
    """When a worker last started the invocation."""

    finished_at: Instant | None = None
    """When the invocation finished."""


class InvocationView(View, frozen=True, kw_only=True):
    """An invocation of a function."""

    invocation_id: str = field(name="invocationID")
    """The ID of the invocation. The caller chose it, or the API generated it."""

    serverless_request_id: str = field(name="serverlessRequestID")
    """The serverless.requestID of the function."""

    state: InvocationState
    """queued, dispatched (the invocation waits for a worker), running, or a final state: succeeded, failed, expired,
    dead_lettered or cancelled."""

    cancel_requested: bool = False
    """Whether the invocation was cancelled and has not finished yet. It may still finish with a result that a worker
    has already produced."""

    deadline: Instant | None = None
    """The time after which the invocation expires. Omitted after the invocation has finished."""

    failure: FailureView | None = None
    """Why the invocation did not succeed."""

    status_code: int | None = None
    """The HTTP status code that the function returned."""

    content_type: str | None = None
    """The content type of the payload."""

    payload: Raw | UnsetType = UNSET
    """The output of the function. Lists omit it."""

    payload_encoding: PayloadEncoding | None = None
    """json: the payload is the JSON value that the function returned. base64: the payload is a base64 string of the
    bytes."""

    body_bytes: int | None = None
    """The size of the function's output in bytes."""

    body_truncated: bool = False
    """Whether the payload contains only the beginning of the output."""

    result_expired: bool = False
    """Whether the invocation has finished and its result is no longer stored."""

    timings: TimingsView
    """The times of the invocation."""

    worker: str | None = None
    """The name of the unit that runs the invocation, or ran it last."""

    attempts: int | None = None
    """How many times a worker started the invocation. Omitted until the invocation has finished."""


def record_view(invocation_id: str, record: InvocationRecord) -> InvocationView:
    """Build the view from the record: the state, without the result."""
    finished = record.finished
    return InvocationView(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        state=state_of(record),
        cancel_requested=record.cancel_requested,
        deadline=None if finished else record.deadline,
        timings=TimingsView(enqueued_at=record.enqueued_at, finished_at=record.updated_at if finished else None),
        worker=record.worker or None,
    )


def message_view(invocation: Invocation, state: InvocationState) -> InvocationView:
    """Build the view from a message in a stream. This function is used if the record has expired."""
    return InvocationView(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        state=state,
        deadline=invocation.deadline,
        timings=TimingsView(enqueued_at=invocation.enqueued_at),
    )


def result_view(result: Result) -> InvocationView:
    payload, encoding = encode_payload(result.body, result.content_type, whole=not result.body_truncated)
    has_output = result.status_code is not None or bool(result.content_type or result.body)
    return InvocationView(
        invocation_id=result.invocation_id,
        serverless_request_id=result.serverless_request_id,
        state=InvocationState(result.state.value),
        failure=FailureView(**structs.asdict(result.failure)) if result.failure else None,
        status_code=result.status_code,
        content_type=result.content_type or None,
        payload=payload,
        payload_encoding=encoding,
        body_bytes=result.body_bytes if has_output else None,
        body_truncated=result.body_truncated,
        timings=TimingsView(**structs.asdict(result.timings)),
        worker=result.worker or None,
        attempts=result.attempts,
    )


def state_of(record: InvocationRecord) -> InvocationState:
    if not record.finished:
        return InvocationState(record.state.value)
    # Every terminal record that gpu-runtime writes has a result state.
    return InvocationState(record.result_state.value) if record.result_state else InvocationState.FAILED


def encode_payload(
    body: bytes, content_type: str, *, whole: bool = True
) -> tuple[Raw | UnsetType, PayloadEncoding | None]:
    """Encode bytes for a JSON response: valid JSON unchanged, everything else as a base64 string."""
    if not body:
        return UNSET, None
    if whole and is_json(content_type) and _is_valid_json(body):
        return Raw(body), "json"
    return Raw(msgspec.json.encode(base64.b64encode(body).decode())), "base64"


def _is_valid_json(body: bytes) -> bool:
    try:
        msgspec.json.decode(body)
    except (ValueError, RecursionError):  # not JSON, not UTF-8, or a number that is too large
        return False
    return True
