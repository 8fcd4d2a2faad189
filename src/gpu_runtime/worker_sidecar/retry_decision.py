"""Decides whether an invocation finishes or is retried after a call of the framework. Nothing here awaits.

The table maps the outcome of a call to the state of the result or to a retry, followed by the failure class.

HandlerSucceeded                    succeeded
HandlerFailed, HandlerRejected      failed, function_error: the function returned an error
TimedOut                            expired, timed_out
RetryRequested                      retry, function_unreachable: the function reports that it did no work
FrameworkFailed UNREACHABLE         retry, function_unreachable: the function was not called
FrameworkFailed CONNECTION_LOST     retry, function_crashed: the function may run twice (at-least-once execution)
FrameworkFailed MALFORMED_RESPONSE  failed, function_error: another attempt would get the same response
"""

from dataclasses import dataclass
from datetime import datetime
from typing import TypeAlias

import msgspec

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import InvocationID, invocation_id_errors
from gpu_runtime.contract.messages.invocation_messages import identity_errors, termination_failure
from gpu_runtime.contract.messages.invocation_record import Termination
from gpu_runtime.contract.messages.limits import truncate_text
from gpu_runtime.contract.messages.message_codec import JSON_DECODE_ERRORS, MessageDecodeError, decode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
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
"""Maximum delay before a retry. If the framework requests a longer delay, the sidecar uses this maximum."""


@dataclass(frozen=True)
class FinishInvocation:
    """Publish a result with this state."""

    state: ResultState
    failure: Failure | None = None
    status: int | None = None
    response: HandlerSucceeded | None = None


@dataclass(frozen=True)
class RetryInvocation:
    """Redeliver the invocation, or dead-letter it if it has reached the maximum number of attempts."""

    failure: Failure
    delay: float | None = None
    """Delay in seconds that the framework requested. If it is None, the sidecar uses its backoff."""


Disposition: TypeAlias = FinishInvocation | RetryInvocation


def disposition_of(outcome: FrameworkOutcome) -> Disposition:
    """Return whether the invocation finishes or is retried after a call with this outcome."""
    match outcome:
        case HandlerSucceeded(status=status):
            return FinishInvocation(ResultState.SUCCEEDED, status=status, response=outcome)
        case HandlerFailed(error_type, message, status) | HandlerRejected(error_type, message, status):
            failure = _failure(FailureClass.FUNCTION_ERROR, f"{error_type}: {message}")
            return FinishInvocation(ResultState.FAILED, failure, status)
        case TimedOut(message):
            return FinishInvocation(ResultState.EXPIRED, _failure(FailureClass.TIMED_OUT, message))
        case RetryRequested(error_type, message, retry_after):
            failure = _failure(
                FailureClass.FUNCTION_UNREACHABLE, f"the function requested a retry: {error_type}: {message}"
            )
            return RetryInvocation(failure, None if retry_after is None else min(retry_after, MAX_RETRY_DELAY_SECONDS))
        case FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, reason):
            return FinishInvocation(ResultState.FAILED, _failure(FailureClass.FUNCTION_ERROR, reason))
        case FrameworkFailed(kind, reason):
            lost = kind is FrameworkFailureKind.CONNECTION_LOST
            return RetryInvocation(
                _failure(FailureClass.FUNCTION_CRASHED if lost else FailureClass.FUNCTION_UNREACHABLE, reason)
            )


def terminated(termination: Termination) -> FinishInvocation:
    """Return the disposition of an invocation that ends without an outcome of the function."""
    return FinishInvocation(*termination_failure(termination))


@dataclass(frozen=True)
class ServedFunction:
    """The function of this worker."""

    function_id: str
    request_id: str


@dataclass(frozen=True)
class InvocationAttempt:
    """One attempt of an invocation on a worker."""

    worker: str
    attempts: int
    """Number of times that a worker started the invocation, including this attempt if it started."""
    started_at: datetime | None = None


def result_of(
    dispatch: Dispatch, finish: FinishInvocation, attempt: InvocationAttempt, now: datetime, max_body_bytes: int
) -> Result:
    """Build the result of a finished invocation. Truncate its body at `max_body_bytes`."""
    invocation = dispatch.invocation
    result = Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        function_id=invocation.function_id,
        state=finish.state,
        failure=finish.failure,
        status_code=finish.status,
        timings=Timings(
            enqueued_at=invocation.enqueued_at,
            dispatched_at=dispatch.dispatched_at,
            started_at=attempt.started_at,
            finished_at=now,
        ),
        worker=attempt.worker,
        attempts=attempt.attempts,
    )
    return _with_response_body(result, finish.response, max_body_bytes) if finish.response else result


def dead_letter_result(
    data: bytes, function: ServedFunction, failure: Failure, attempt: InvocationAttempt, now: datetime
) -> Result | None:
    """Build the result of a dead-lettered dispatch.

    If the message cannot be decoded, the result contains no data of the invocation except its ID. Return None if the
    message has no valid invocation ID. Also return None if the message names another function, because it is then
    unknown to which function the invocation belongs.
    """
    finish = FinishInvocation(ResultState.DEAD_LETTERED, failure)
    try:
        result = result_of(decode(data, Dispatch), finish, attempt, now, max_body_bytes=0)
    except MessageDecodeError:
        invocation_id = _decode_invocation_id(data)
    else:
        return None if any(identity_errors(result, function.function_id)) else result
    if any(invocation_id_errors(invocation_id)):
        return None
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=function.request_id,
        function_id=function.function_id,
        state=finish.state,
        failure=failure,
        timings=Timings(finished_at=now),
        worker=attempt.worker,
        attempts=attempt.attempts,
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
    """Remove the body of a result that is larger than the maximum message size of the server."""
    return msgspec.structs.replace(result, body=b"", body_truncated=True)


def _with_response_body(result: Result, response: HandlerSucceeded, max_body_bytes: int) -> Result:
    result = with_body(result, truncate_text(response.content_type, 256), response.body, max_body_bytes)
    if response.full_body_bytes is None:
        return result
    return msgspec.structs.replace(result, body_truncated=True, body_bytes=response.full_body_bytes)


def _failure(failure_class: FailureClass, message: str) -> Failure:
    return Failure(failure_class=failure_class, message=truncate_text(message))
