"""Every event in every state of an invocation record has one outcome, and no sequence of events breaks a rule."""

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from gpu_runtime.contract.messages.invocation_record import (
    HOLDS_DELIVERY,
    NO_TAKEOVER,
    WORKER_GRACE,
    Abandoned,
    CancelRequested,
    DeadlinePassed,
    Dispatched,
    InvocationRecord,
    RecordEvent,
    RecordState,
    Refusal,
    ResultStored,
    Started,
    Termination,
    step,
    termination_to_publish,
)
from gpu_runtime.contract.messages.result import ResultState

DEADLINE = datetime(2026, 1, 1, tzinfo=UTC)
EARLY, LATE = DEADLINE - timedelta(seconds=1), DEADLINE + timedelta(minutes=1)
QUEUED = InvocationRecord(
    request_hash="h", serverless_request_id="f", function_id="f", enqueued_at=EARLY, deadline=DEADLINE, updated_at=EARLY
)
DISPATCHED = msgspec.structs.replace(QUEUED, state=RecordState.DISPATCHED)
RUNNING = msgspec.structs.replace(QUEUED, state=RecordState.RUNNING, worker="w-1", attempts=1)
FINISHED = msgspec.structs.replace(RUNNING, state=RecordState.TERMINAL, result_state=ResultState.SUCCEEDED)
STATES = (QUEUED, DISPATCHED, RUNNING, FINISHED)
RECORDS = [msgspec.structs.replace(each, termination=how) for each in STATES for how in (None, *Termination)]
EVENTS: list[RecordEvent] = [
    event
    for at in (EARLY, DEADLINE, DEADLINE + WORKER_GRACE, LATE)
    for event in (
        Dispatched(at),
        Started(at, "w-2"),
        CancelRequested(at),
        DeadlinePassed(at, WORKER_GRACE),
        DeadlinePassed(at, NO_TAKEOVER),
        Abandoned(at, Termination.FUNCTION_GONE),
        ResultStored(at, ResultState.FAILED),
    )
]
ORDER = tuple(RecordState)


@pytest.mark.parametrize("record", RECORDS)
@pytest.mark.parametrize("event", EVENTS, ids=str)
def test_no_event_breaks_a_rule(record: InvocationRecord, event: RecordEvent) -> None:
    after = step(record, event)
    if record.finished:
        assert after is Refusal.FINISHED
    if isinstance(after, Refusal):
        return
    assert ORDER.index(after.state) >= ORDER.index(record.state)
    assert record.termination in (None, after.termination), "the first termination counts"
    if after.termination is Termination.CANCELLED and record.termination is None:
        assert isinstance(event, CancelRequested)
    if record.termination is not None:
        assert isinstance(event, CancelRequested | ResultStored), "no worker starts the invocation any more"
    if record.state is RecordState.RUNNING and after.termination is not record.termination:
        may_take_over = isinstance(event, DeadlinePassed | Started) and event.at >= DEADLINE + WORKER_GRACE
        assert may_take_over or isinstance(event, CancelRequested)


@pytest.mark.parametrize(
    ("record", "event", "expected"),
    [
        (QUEUED, Dispatched(EARLY), DISPATCHED),
        (DISPATCHED, Dispatched(LATE), DISPATCHED),
        (RUNNING, Dispatched(EARLY), Refusal.RUNNING),
        (QUEUED, Started(EARLY, "w-1"), RUNNING),
        (DISPATCHED, Started(EARLY, "w-1"), RUNNING),
        (RUNNING, Started(DEADLINE, "w-2"), Refusal.RUNNING),
        (RUNNING, Abandoned(LATE, Termination.FUNCTION_GONE), Refusal.RUNNING),
        (RUNNING, DeadlinePassed(DEADLINE, WORKER_GRACE), Refusal.RUNNING),
        (RUNNING, DeadlinePassed(LATE, NO_TAKEOVER), Refusal.RUNNING),
        (QUEUED, DeadlinePassed(EARLY, WORKER_GRACE), Refusal.TOO_EARLY),
    ],
)
def test_event_leads_to_this_record_or_refusal(
    record: InvocationRecord, event: RecordEvent, expected: InvocationRecord | Refusal
) -> None:
    assert step(record, event) == expected


@pytest.mark.parametrize(
    ("record", "event", "termination"),
    [
        (QUEUED, Started(DEADLINE, "w-1"), Termination.EXPIRED),
        (DISPATCHED, DeadlinePassed(DEADLINE, NO_TAKEOVER), Termination.EXPIRED),
        (RUNNING, DeadlinePassed(DEADLINE + WORKER_GRACE, WORKER_GRACE), Termination.EXPIRED),
        (RUNNING, Started(DEADLINE + WORKER_GRACE, "w-2"), Termination.EXPIRED),
        (DISPATCHED, Abandoned(EARLY, Termination.FUNCTION_GONE), Termination.FUNCTION_GONE),
        (DISPATCHED, Abandoned(EARLY, Termination.DEAD_LETTERED), Termination.DEAD_LETTERED),
        (RUNNING, CancelRequested(EARLY), Termination.CANCELLED),
    ],
)
def test_event_terminates_the_invocation(
    record: InvocationRecord, event: RecordEvent, termination: Termination
) -> None:
    after = step(record, event)
    assert isinstance(after, InvocationRecord)
    assert (after.state, after.termination, after.worker) == (record.state, termination, record.worker)


def test_redelivery_counts_an_attempt_and_names_the_new_worker() -> None:
    again = step(RUNNING, Started(EARLY, "w-2"))
    assert isinstance(again, InvocationRecord)
    assert (again.worker, again.attempts) == ("w-2", 2)


@pytest.mark.parametrize("record", RECORDS)
def test_result_of_a_termination_is_published_unless_a_worker_runs_the_invocation(record: InvocationRecord) -> None:
    expected = None if record.finished else record.termination
    assert termination_to_publish(record, DEADLINE + WORKER_GRACE, WORKER_GRACE) is expected
    assert termination_to_publish(record, EARLY, HOLDS_DELIVERY) is expected
    running = record.state is RecordState.RUNNING
    assert termination_to_publish(record, LATE, NO_TAKEOVER) is (None if running else expected)
    assert termination_to_publish(record, DEADLINE, WORKER_GRACE) is (None if running else expected)
