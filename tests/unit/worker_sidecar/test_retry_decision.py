"""What becomes of an invocation after its call."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
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
from gpu_runtime.worker_sidecar.retry_decision import (
    FinishInvocation,
    InvocationAttempt,
    RetryInvocation,
    dead_letter_failure,
    dead_letter_result,
    disposition_of,
    result_of,
    without_body,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUN = InvocationAttempt("worker-1", 2, NOW)
DISPATCH = Dispatch(
    invocation=Invocation(
        invocation_id="inv-1", serverless_request_id="fn-1", enqueued_at=NOW - timedelta(seconds=2), timeout_seconds=9
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
            FrameworkFailed(FrameworkFailureKind.MALFORMED_RESPONSE, "odd"),
            ResultState.FAILED,
            FailureClass.FUNCTION_ERROR,
            None,
        ),
    ],
)
def test_final_outcome_becomes_a_result(
    outcome: FrameworkOutcome, state: ResultState, failure: FailureClass | None, status: int | None
) -> None:
    ended = disposition_of(outcome)
    assert isinstance(ended, FinishInvocation)
    result = result_of(DISPATCH, ended, RUN, NOW, max_body_bytes=100)
    assert (result.state, result.status_code, result.attempts) == (state, status, 2)
    assert (result.failure.failure_class if result.failure else None) == failure


@pytest.mark.parametrize(
    ("outcome", "failure", "after"),
    [
        (RetryRequested("Busy", "later", 3.0), FailureClass.FUNCTION_UNREACHABLE, 3.0),
        (RetryRequested("Busy", "tomorrow", 86_400.0), FailureClass.FUNCTION_UNREACHABLE, 3600.0),
        (FrameworkFailed(FrameworkFailureKind.UNREACHABLE, "away"), FailureClass.FUNCTION_UNREACHABLE, None),
        (FrameworkFailed(FrameworkFailureKind.CONNECTION_LOST, "gone"), FailureClass.FUNCTION_CRASHED, None),
    ],
)
def test_retryable_outcome_is_retried(outcome: FrameworkOutcome, failure: FailureClass, after: float | None) -> None:
    again = disposition_of(outcome)
    assert isinstance(again, RetryInvocation)
    assert (again.failure.failure_class, again.delay) == (failure, after)


def test_truncated_body_reports_its_full_size() -> None:
    ended = FinishInvocation(
        ResultState.SUCCEEDED, response=HandlerSucceeded(200, "a/b", b"begin", full_body_bytes=1000)
    )
    result = result_of(DISPATCH, ended, RUN, NOW, max_body_bytes=100)
    assert (result.body, result.body_truncated, result.body_bytes) == (b"begin", True, 1000)
    assert (without_body(result).body, without_body(result).body_bytes) == (b"", 1000)


@pytest.mark.parametrize(
    ("attempt", "kind", "told"),
    [
        (3, FailureClass.BAD_MESSAGE, FailureClass.BAD_MESSAGE),
        (3, "", FailureClass.INTERNAL),
        (4, "", FailureClass.WORKER_LOST),
    ],
)
def test_dead_lettered_invocation_has_a_failure_class(attempt: int, kind: str, told: FailureClass) -> None:
    delivery = Delivery("s", b"", {}, "S", 1, attempt, NOW)
    assert dead_letter_failure(delivery, DeadLetterDelivery("because", kind), max_deliveries=3).failure_class is told


@pytest.mark.parametrize(
    ("data", "named"),
    [
        (encode(DISPATCH), "inv-1"),
        (b'{"version": 9, "invocation": {"invocationID": "inv-2", "more": 1}}', "inv-2"),
        (b'{"invocation": {"invocationID": 7}}', None),
        (b"[]", None),
        (b"\xff", None),
    ],
)
def test_dead_letter_with_a_readable_invocation_id_has_a_result(data: bytes, named: str | None) -> None:
    failure = dead_letter_failure(
        Delivery("s", data, {}, "S", 1, 3, NOW), DeadLetterDelivery("because"), max_deliveries=3
    )
    result = dead_letter_result(data, "fn-1", failure, RUN, NOW)
    assert (result.invocation_id if result else None) == named
    assert result is None or result.state is ResultState.DEAD_LETTERED


@pytest.mark.parametrize(
    "said",
    [
        Invocation(invocation_id="inv-1", serverless_request_id="Not.A.Token", timeout_seconds=1),
        Invocation(invocation_id="two words", serverless_request_id="fn-1", timeout_seconds=1),
    ],
)
def test_dead_letter_of_another_function_has_no_result(said: Invocation) -> None:
    failure = dead_letter_failure(
        Delivery("s", b"", {}, "S", 1, 1, NOW), DeadLetterDelivery("because"), max_deliveries=3
    )
    dispatch = Dispatch(invocation=said, deadline=NOW, dispatched_at=NOW)
    assert dead_letter_result(encode(dispatch), "fn-1", failure, RUN, NOW) is None
