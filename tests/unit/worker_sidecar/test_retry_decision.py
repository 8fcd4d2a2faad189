"""The decision to finish, retry or dead-letter an invocation after a call."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import dead_letter_failure
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.delivery import DeadLetterDelivery
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
from gpu_runtime.worker_sidecar.retry_decision import (
    FinishInvocation,
    InvocationAttempt,
    RetryInvocation,
    ServedFunction,
    dead_letter_result,
    disposition_of,
    result_of,
    without_body,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
FUNCTION = ServedFunction("fn-1", "double")
ATTEMPT = InvocationAttempt("worker-1", 2, NOW)
DISPATCH = Dispatch(
    invocation=Invocation(
        invocation_id="inv-1",
        serverless_request_id="fn-1",
        function_id="fn-1",
        enqueued_at=NOW - timedelta(seconds=2),
        timeout_seconds=9,
    ),
    deadline=NOW + timedelta(seconds=7),
    dispatched_at=NOW - timedelta(seconds=1),
)


@pytest.mark.parametrize(
    ("outcome", "state", "failure", "status"),
    [
        (HandlerSucceeded(201, "a/b", b"x"), ResultState.SUCCEEDED, None, 201),
        (HandlerFailed("ValueError", "no", 500), ResultState.FAILED, FailureClass.FUNCTION_ERROR, 500),
        (HandlerRejected("Reject", "no", 422), ResultState.FAILED, FailureClass.FUNCTION_ERROR, 422),
        (TimedOut("late"), ResultState.EXPIRED, FailureClass.TIMED_OUT, None),
        (
            FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, "not HTTP"),
            ResultState.FAILED,
            FailureClass.FUNCTION_ERROR,
            None,
        ),
    ],
)
def test_final_outcome_becomes_a_result(
    outcome: FrameworkOutcome, state: ResultState, failure: FailureClass | None, status: int | None
) -> None:
    finish = disposition_of(outcome)
    assert isinstance(finish, FinishInvocation)
    result = result_of(DISPATCH, finish, ATTEMPT, NOW, max_body_bytes=100)
    assert (result.state, result.status_code, result.attempts) == (state, status, 2)
    assert (result.failure.failure_class if result.failure else None) == failure


@pytest.mark.parametrize(
    ("outcome", "failure", "delay"),
    [
        (RetryRequested("Busy", "later", 3.0), FailureClass.FUNCTION_UNREACHABLE, 3.0),
        (RetryRequested("Busy", "tomorrow", 86_400.0), FailureClass.FUNCTION_UNREACHABLE, 3600.0),
        (FrameworkFailed(FrameworkFailureKind.UNREACHABLE, "no socket"), FailureClass.FUNCTION_UNREACHABLE, None),
        (FrameworkFailed(FrameworkFailureKind.CONNECTION_LOST, "closed"), FailureClass.FUNCTION_CRASHED, None),
    ],
)
def test_retryable_outcome_is_retried(outcome: FrameworkOutcome, failure: FailureClass, delay: float | None) -> None:
    retry = disposition_of(outcome)
    assert isinstance(retry, RetryInvocation)
    assert (retry.failure.failure_class, retry.delay) == (failure, delay)


def test_truncated_body_reports_its_full_size() -> None:
    finish = FinishInvocation(
        ResultState.SUCCEEDED, response=HandlerSucceeded(200, "a/b", b"begin", full_body_bytes=1000)
    )
    result = result_of(DISPATCH, finish, ATTEMPT, NOW, max_body_bytes=100)
    assert (result.body, result.body_truncated, result.body_bytes) == (b"begin", True, 1000)
    assert (without_body(result).body, without_body(result).body_bytes) == (b"", 1000)


@pytest.mark.parametrize(
    ("failure_class", "expected"),
    [(FailureClass.BAD_MESSAGE, FailureClass.BAD_MESSAGE), ("", FailureClass.INTERNAL)],
)
def test_dead_lettered_invocation_has_a_failure_class(failure_class: str, expected: FailureClass) -> None:
    assert dead_letter_failure(DeadLetterDelivery("because", failure_class)).failure_class is expected


@pytest.mark.parametrize(
    ("data", "invocation_id"),
    [
        (encode(DISPATCH), "inv-1"),
        (b'{"version": 9, "invocation": {"invocationID": "inv-2", "more": 1}}', "inv-2"),
        (b'{"invocation": {"invocationID": 7}}', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_dead_letter_with_a_readable_invocation_id_has_a_result(data: bytes, invocation_id: str | None) -> None:
    failure = dead_letter_failure(DeadLetterDelivery("because"))
    result = dead_letter_result(data, FUNCTION, failure, ATTEMPT, NOW)
    assert (result.invocation_id if result else None) == invocation_id
    assert result is None or result.state is ResultState.DEAD_LETTERED


@pytest.mark.parametrize(
    "invocation",
    [
        Invocation(invocation_id="inv-1", serverless_request_id="fn-1", function_id="Not.A.Token", timeout_seconds=1),
        Invocation(invocation_id="two words", serverless_request_id="fn-1", function_id="fn-1", timeout_seconds=1),
    ],
)
def test_dead_letter_with_another_function_or_invalid_id_has_no_result(invocation: Invocation) -> None:
    failure = dead_letter_failure(DeadLetterDelivery("because"))
    dispatch = Dispatch(invocation=invocation, deadline=NOW, dispatched_at=NOW)
    assert dead_letter_result(encode(dispatch), FUNCTION, failure, ATTEMPT, NOW) is None
