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
from gpu_runtime.contract.messages.invocation_id import invocation_id_problems
from gpu_runtime.contract.messages.limits import shortened
from gpu_runtime.contract.messages.message_codec import NOT_JSON, Unreadable, decode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.jetstream.delivery import Delivery, GiveUp
from gpu_runtime.worker_sidecar.framework_response import (
    Answered,
    AskedToRetry,
    Break,
    Broken,
    HandlerFailed,
    HandlerRejected,
    Outcome,
    TimedOut,
)

LONGEST_ASKED_WAIT = 3600.0
"""Seconds. A framework that names a longer one is not believed: the invocation's own time matters more."""


@dataclass(frozen=True)
class Ended:
    state: ResultState
    failure: Failure | None = None
    status: int | None = None
    answer: Answered | None = None


@dataclass(frozen=True)
class Again:
    failure: Failure
    after: float | None = None
    """Seconds, where the framework named them."""


Verdict: TypeAlias = Ended | Again


def verdict(outcome: Outcome) -> Verdict:
    match outcome:
        case Answered(status=status):
            return Ended(ResultState.SUCCEEDED, status=status, answer=outcome)
        case HandlerFailed(kind, message, status) | HandlerRejected(kind, message, status):
            return Ended(ResultState.FAILED, _failure(FailureClass.FUNCTION_ERROR, f"{kind}: {message}"), status)
        case TimedOut(message):
            return expired(message)
        case AskedToRetry(kind, message, after):
            failure = _failure(
                FailureClass.FUNCTION_UNREACHABLE, f"the function asked for another try: {kind}: {message}"
            )
            return Again(failure, None if after is None else min(after, LONGEST_ASKED_WAIT))
        case Broken(Break.GARBLED, reason):
            return Ended(ResultState.FAILED, _failure(FailureClass.FUNCTION_ERROR, reason))
        case Broken(kind, reason):
            lost = kind is Break.LOST
            return Again(_failure(FailureClass.FUNCTION_CRASHED if lost else FailureClass.FUNCTION_UNREACHABLE, reason))


def expired(message: str) -> Ended:
    return Ended(ResultState.EXPIRED, _failure(FailureClass.TIMED_OUT, message))


def cancelled() -> Ended:
    return Ended(ResultState.CANCELLED, _failure(FailureClass.CANCELLED, "the caller took it back"))


@dataclass(frozen=True)
class Run:
    """One try of an invocation by a worker."""

    worker: str
    attempts: int
    """How often a worker began it, this time included if it was begun."""
    started_at: datetime | None = None


def result_of(dispatch: Dispatch, ended: Ended, run: Run, now: datetime, body_limit: int) -> Result:
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
    return _answered(result, ended.answer, body_limit) if ended.answer else result


def failure_of(delivery: Delivery, given_up: GiveUp, attempts: int) -> Failure:
    """What was given up before it was tried: the last one who tried it never came back."""
    untried = FailureClass.WORKER_LOST if delivery.attempt > attempts else FailureClass.INTERNAL
    return _failure(FailureClass(given_up.kind or untried), given_up.reason)


def buried(data: bytes, request_id: str, failure: Failure, run: Run, now: datetime) -> Result | None:
    """The result of a dispatch that was given up. Of one that cannot be read, as far as it says whose it is; of one
    that says it is another function's, none: nobody knows whose it is."""
    ended = Ended(ResultState.DEAD_LETTERED, failure)
    try:
        result = result_of(decode(data, Dispatch), ended, run, now, body_limit=0)
    except Unreadable:
        invocation_id = _name(data)
    else:
        known = result.serverless_request_id == request_id and not any(invocation_id_problems(result.invocation_id))
        return result if known else None
    if any(invocation_id_problems(invocation_id)):
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


class _Named(msgspec.Struct):
    invocation_id: InvocationID = msgspec.field(default="", name="invocationID")


class _Naming(msgspec.Struct):
    invocation: _Named = msgspec.field(default_factory=_Named)


def _name(data: bytes) -> str:
    try:
        return msgspec.json.decode(data, type=_Naming).invocation.invocation_id
    except NOT_JSON:
        return ""


def without_body(result: Result) -> Result:
    """What is left where the server takes no message as large as this one."""
    return msgspec.structs.replace(result, body=b"", body_truncated=True)


def _answered(result: Result, answer: Answered, limit: int) -> Result:
    kept = with_body(result, shortened(answer.content_type, 256), answer.body, limit)
    if answer.size is None:
        return kept
    return msgspec.structs.replace(kept, body_truncated=True, body_bytes=answer.size)


def _failure(kind: FailureClass, message: str) -> Failure:
    return Failure(failure_class=kind, message=shortened(message))
