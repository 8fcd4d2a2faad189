"""What becomes of an invocation after its call."""

from datetime import UTC, datetime, timedelta

import pytest

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
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
from gpu_runtime.worker_sidecar.retry_decision import (
    Again,
    Ended,
    Run,
    buried,
    failure_of,
    result_of,
    verdict,
    without_body,
)

NOW = datetime(2030, 1, 1, tzinfo=UTC)
RUN = Run("worker-1", 2, NOW)
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
        (Answered(201, "a/b", b"x"), ResultState.SUCCEEDED, None, 201),
        (HandlerFailed("ValueError", "no", 500), ResultState.FAILED, FailureClass.FUNCTION_ERROR, 500),
        (HandlerRejected("Reject", "no", 422), ResultState.FAILED, FailureClass.FUNCTION_ERROR, 422),
        (TimedOut("late"), ResultState.EXPIRED, FailureClass.TIMED_OUT, None),
        (Broken(Break.GARBLED, "odd"), ResultState.FAILED, FailureClass.FUNCTION_ERROR, None),
    ],
)
def test_an_end_says_how_it_came(
    outcome: Outcome, state: ResultState, failure: FailureClass | None, status: int | None
) -> None:
    ended = verdict(outcome)
    assert isinstance(ended, Ended)
    result = result_of(DISPATCH, ended, RUN, NOW, body_limit=100)
    assert (result.state, result.status_code, result.attempts) == (state, status, 2)
    assert (result.failure.failure_class if result.failure else None) == failure


@pytest.mark.parametrize(
    ("outcome", "failure", "after"),
    [
        (AskedToRetry("Busy", "later", 3.0), FailureClass.FUNCTION_UNREACHABLE, 3.0),
        (AskedToRetry("Busy", "tomorrow", 86_400.0), FailureClass.FUNCTION_UNREACHABLE, 3600.0),
        (Broken(Break.UNREACHABLE, "away"), FailureClass.FUNCTION_UNREACHABLE, None),
        (Broken(Break.LOST, "gone"), FailureClass.FUNCTION_CRASHED, None),
    ],
)
def test_what_may_go_better_is_tried_again(outcome: Outcome, failure: FailureClass, after: float | None) -> None:
    again = verdict(outcome)
    assert isinstance(again, Again)
    assert (again.failure.failure_class, again.after) == (failure, after)


def test_a_body_that_was_cut_off_is_told_with_the_size_of_the_whole() -> None:
    ended = Ended(ResultState.SUCCEEDED, answer=Answered(200, "a/b", b"begin", size=1000))
    result = result_of(DISPATCH, ended, RUN, NOW, body_limit=100)
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
def test_what_is_given_up_has_a_class(attempt: int, kind: str, told: FailureClass) -> None:
    delivery = Delivery("s", b"", {}, "S", 1, attempt, NOW)
    assert failure_of(delivery, GiveUp("because", kind), attempts=3).failure_class is told


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
def test_whoever_can_be_named_has_a_result(data: bytes, named: str | None) -> None:
    failure = failure_of(Delivery("s", data, {}, "S", 1, 3, NOW), GiveUp("because"), attempts=3)
    result = buried(data, "fn-1", failure, RUN, NOW)
    assert (result.invocation_id if result else None) == named
    assert result is None or result.state is ResultState.DEAD_LETTERED


@pytest.mark.parametrize(
    "said",
    [
        Invocation(invocation_id="inv-1", serverless_request_id="Not.A.Token", timeout_seconds=1),
        Invocation(invocation_id="two words", serverless_request_id="fn-1", timeout_seconds=1),
    ],
)
def test_what_cannot_be_of_this_function_has_no_result(said: Invocation) -> None:
    failure = failure_of(Delivery("s", b"", {}, "S", 1, 1, NOW), GiveUp("because"), attempts=3)
    dispatch = Dispatch(invocation=said, deadline=NOW, dispatched_at=NOW)
    assert buried(encode(dispatch), "fn-1", failure, RUN, NOW) is None
