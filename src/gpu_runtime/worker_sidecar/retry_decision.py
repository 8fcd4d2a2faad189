"""What becomes of an invocation after its call: an end, or another try. Nothing here awaits.

Answered                          succeeded
HandlerFailed, HandlerRejected    failed, function_error: that is the function's answer
TimedOut                          expired, timed_out
AskedToRetry, Broken UNREACHABLE  another try: the function was not called, or says that it did nothing
Broken LOST                       another try: execution is at least once
Broken GARBLED                    failed, function_error: another try would be answered in the same way
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import msgspec

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import InvocationID
from gpu_runtime.contract.messages.invocation_id import invocation_id_errors
from gpu_runtime.contract.messages.limits import truncate_text
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS, MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery
from gpu_runtime.worker_sidecar.framework_response import (
    FrameworkFailed,
    FrameworkFailureKind,
    FrameworkOutcome,
    HandlerFailed,
    HandlerRejected,
    HandlerSucceeded,
    RetryRequested,
    TimedOut,
)

MAX_RETRY_DELAY_SECONDS = 3600.0
"""Seconds. A framework that names a longer one is not believed: the invocation's own time matters more."""


@dataclass(frozen=True)
class FinishInvocation:
    state: ResultState
    failure: Failure | None = None
    status: int | None = None
    response: HandlerSucceeded | None = None


@dataclass(frozen=True)
class RetryInvocation:
    failure: Failure
    delay: float | None = None
    """Seconds, where the framework named them."""


Disposition: TypeAlias = FinishInvocation | RetryInvocation


def disposition_of(outcome: FrameworkOutcome) -> Disposition:
    match outcome:
        case HandlerSucceeded(status=status):
            return FinishInvocation(ResultState.SUCCEEDED, status=status, response=outcome)
        case HandlerFailed(kind, message, status) | HandlerRejected(kind, message, status):
            return FinishInvocation(
                ResultState.FAILED, _failure(FailureClass.FUNCTION_ERROR, f"{kind}: {message}"), status
            )
        case TimedOut(message):
            return expired(message)
        case RetryRequested(kind, message, after):
            failure = _failure(
                FailureClass.FUNCTION_UNREACHABLE, f"the function asked for another try: {kind}: {message}"
            )
            return RetryInvocation(failure, None if after is None else min(after, MAX_RETRY_DELAY_SECONDS))
        case FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, reason):
            return FinishInvocation(ResultState.FAILED, _failure(FailureClass.FUNCTION_ERROR, reason))
        case FrameworkFailed(kind, reason):
            lost = kind is FrameworkFailureKind.CONNECTION_LOST
            return RetryInvocation(
                _failure(FailureClass.FUNCTION_CRASHED if lost else FailureClass.FUNCTION_UNREACHABLE, reason)
            )


def expired(message: str) -> FinishInvocation:
    return FinishInvocation(ResultState.EXPIRED, _failure(FailureClass.TIMED_OUT, message))


def cancelled() -> FinishInvocation:
    return FinishInvocation(ResultState.CANCELLED, _failure(FailureClass.CANCELLED, "the caller took it back"))


@dataclass(frozen=True)
class InvocationAttempt:
    """One try of an invocation by a worker."""

    worker: str
    attempts: int
    """How often a worker began it, this time included if it was begun."""
    started_at: datetime | None = None


def result_of(
    dispatch: Dispatch, ended: FinishInvocation, run: InvocationAttempt, now: datetime, max_body_bytes: int
) -> Result:
    invocation = dispatch.invocation
    result = Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        state=ended.state,
        failure=ended.failure,
        status_code=ended.status,
        timings=Timings(
            enqueued_at=invocation.enqueued_at,
            dispatched_at=dispatch.dispatched_at,
            started_at=run.started_at,
            finished_at=now,
        ),
        worker=run.worker,
        attempts=run.attempts,
    )
    return _with_response_body(result, ended.response, max_body_bytes) if ended.response else result


def dead_letter_failure(delivery: Delivery, given_up: DeadLetterDelivery, max_deliveries: int) -> Failure:
    """What was given up before it was tried: the last one who tried it never came back."""
    untried = FailureClass.WORKER_LOST if delivery.delivery_count > max_deliveries else FailureClass.INTERNAL
    return _failure(FailureClass(given_up.failure_class or untried), given_up.reason)


def dead_letter_result(
    data: bytes, request_id: str, failure: Failure, run: InvocationAttempt, now: datetime
) -> Result | None:
    """The result of a dispatch that was given up. Of one that cannot be read, as far as it says whose it is; of one
    that says it is another function's, none: nobody knows whose it is."""
    ended = FinishInvocation(ResultState.DEAD_LETTERED, failure)
    try:
        result = result_of(decode(data, Dispatch), ended, run, now, max_body_bytes=0)
    except MessageDecodeError:
        invocation_id = _decode_invocation_id(data)
    else:
        known = result.serverless_request_id == request_id and not any(invocation_id_errors(result.invocation_id))
        return result if known else None
    if any(invocation_id_errors(invocation_id)):
        return None
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=request_id,
        state=ended.state,
        failure=failure,
        timings=Timings(finished_at=now),
        worker=run.worker,
        attempts=run.attempts,
    )


class _PartialInvocation(msgspec.Struct):
    invocation_id: InvocationID = msgspec.field(default="", name="invocationID")


class _PartialDispatch(msgspec.Struct):
    invocation: _PartialInvocation = msgspec.field(default_factory=_PartialInvocation)


def _decode_invocation_id(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_PartialDispatch).invocation.invocation_id
    except JSON_DECODE_ERRORS:
        return ""


def without_body(result: Result) -> Result:
    """What is left where the server takes no message as large as this one."""
    return msgspec.structs.replace(result, body=b"", body_truncated=True)


def _with_response_body(result: Result, answer: HandlerSucceeded, limit: int) -> Result:
    kept = with_body(result, truncate_text(answer.content_type, 256), answer.body, limit)
    if answer.full_body_bytes is None:
        return kept
    return msgspec.structs.replace(kept, body_truncated=True, body_bytes=answer.full_body_bytes)


def _failure(kind: FailureClass, message: str) -> Failure:
    return Failure(failure_class=kind, message=truncate_text(message))
