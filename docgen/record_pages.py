"""docs/reference/invocation-record.md: what each event changes in an invocation record, computed from the code."""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import msgspec

from docgen.class_constants import documented_constants
from docgen.markdown import code, page, table
from gpu_runtime.contract.messages.invocation_record import (
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
from gpu_runtime.contract.timing import MIN_QUEUE_EXPIRY_GRACE_SECONDS

DEADLINE = datetime(2026, 1, 1, tzinfo=UTC)
BEFORE, AFTER_GRACE = DEADLINE - timedelta(seconds=1), DEADLINE + WORKER_GRACE

EVENTS: tuple[tuple[str, RecordEvent], ...] = (
    ("The activator dispatches the invocation, and no worker has free capacity", Dispatched(BEFORE)),
    ("A worker starts the invocation before the deadline", Started(BEFORE, "worker")),
    ("A worker receives the invocation during the grace period", Started(DEADLINE, "worker")),
    ("A worker receives the invocation after the grace period", Started(AFTER_GRACE, "worker")),
    ("The caller cancels the invocation", CancelRequested(BEFORE)),
    ("The function is deleted or disabled", Abandoned(BEFORE, Termination.FUNCTION_GONE)),
    ("The activator dead-letters the invocation", Abandoned(BEFORE, Termination.DEAD_LETTERED)),
    ("A process tries to end the invocation as `expired` before the deadline", DeadlinePassed(BEFORE, WORKER_GRACE)),
    (
        "A process tries to end the invocation as `expired` during the grace period",
        DeadlinePassed(DEADLINE, WORKER_GRACE),
    ),
    (
        "A process tries to end the invocation as `expired` after the grace period",
        DeadlinePassed(AFTER_GRACE, WORKER_GRACE),
    ),
    ("The result store stores a result", ResultStored(BEFORE, ResultState.SUCCEEDED)),
)

CASES: tuple[tuple[RecordState, Termination | None], ...] = (
    (RecordState.QUEUED, None),
    (RecordState.DISPATCHED, None),
    (RecordState.RUNNING, None),
    (RecordState.QUEUED, Termination.CANCELLED),
    (RecordState.RUNNING, Termination.CANCELLED),
    (RecordState.TERMINAL, None),
)


def record_page() -> str:
    introduction = (
        "Every accepted invocation has a record in the key-value bucket (see [streams](streams.md#record-bucket))."
        " The function `step` in `contract/messages/invocation_record.py` decides every change of a record. This page shows the"
        " decisions of `step`. Every write to a record is conditional. If another process has changed the record, the writer reads"
        " the record and decides again."
    )
    states = table(
        ("state", "meaning"), ((code(state), text) for state, text in documented_constants(RecordState).values())
    )
    reasons = documented_constants(Refusal).items()
    refusals = table(("refusal", "reason"), ((code(name), text) for name, (_, text) in reasons))
    header = ("event", *(_case(state, termination) for state, termination in CASES))
    publish = table(("record", "until the grace period has passed", "afterwards"), _publish_rows())
    return page(
        "Invocation record",
        introduction,
        f"## States\n\n{states}",
        "## Changes\n\nA cell shows the new state or the new termination, or why the event is refused. The grace period begins at the"
        f" deadline of the invocation. Its length depends on the process. For a worker, it is {WORKER_GRACE.total_seconds():g} s. For the"
        " reaper, it is `reaping.deadlineGraceSeconds`. For a runtime API that gets a query for the invocation, it is"
        f" {MIN_QUEUE_EXPIRY_GRACE_SECONDS:g} s or `nats.streams.invokeAckWaitSeconds`, whichever is longer. An activator that receives"
        " the invocation from the stream INVOKE never ends the invocation as `expired` while a worker runs the invocation."
        f"\n\n{table(header, _change_rows())}",
        f"### Refusals\n\n{refusals}",
        "## Terminations\n\nA process that does not run an invocation can end the invocation. The process first writes one of these"
        f" terminations to the record: {', '.join(map(code, Termination))}. Then the table below decides whether the process publishes"
        " the result. If the process stops before it publishes the result, or if the table does not allow the result yet, another"
        " process that finds the termination publishes the result. The same table applies to the other process. So several processes"
        " may publish the same result. NATS or the result store ignores the duplicates."
        "\n\nThere is one exception: a worker that receives the message of an invocation with a termination publishes the result"
        " immediately. JetStream has delivered the message to this worker, so every earlier delivery to another worker has become invalid."
        f"\n\n{publish}",
        "## Missing and unreadable records\n\n" + table(("record", "reaction"), MISSING_AND_UNREADABLE),
    )


MISSING_AND_UNREADABLE = (
    (
        "The record is missing, because it expired or an operator deleted it.",
        (
            "A process that has the message of the invocation creates the record again, except the result store. The result store"
            " stores the result and creates no record. The API returns the stored result, or status 404 if no result is stored."
        ),
    ),
    (
        "The record is unreadable, because a newer version or an operator wrote it.",
        (
            "No process ends the invocation, dead-letters its message or overwrites the record. The API returns status 503. Every"
            " process that receives the message naks it with a delay of 30 s. Each process writes one log line about the record."
        ),
    ),
)


def _change_rows() -> Iterator[tuple[str, ...]]:
    for text, event in EVENTS:
        yield text, *(_change(_record(state, termination), event) for state, termination in CASES)


def _change(record: InvocationRecord, event: RecordEvent) -> str:
    after = step(record, event)
    if isinstance(after, Refusal):
        return f"refused: {code(after.name)}"
    if after.state is not record.state:
        return code(after.state)
    if after.termination is not record.termination:
        return f"termination {code(after.termination)}"
    return "unchanged" if after is record else f"{code(after.state)} with the new worker"


def _publish_rows() -> Iterator[tuple[str, ...]]:
    for state in RecordState:
        record = _record(state, Termination.CANCELLED)
        grace, later = (
            termination_to_publish(record, BEFORE, NO_TAKEOVER),
            termination_to_publish(record, AFTER_GRACE, WORKER_GRACE),
        )
        yield f"{code(state)} with a termination", *("publish" if each else "do not publish" for each in (grace, later))


def _case(state: RecordState, termination: Termination | None) -> str:
    return f"{code(state)} with a termination" if termination else code(state)


def _record(state: RecordState, termination: Termination | None) -> InvocationRecord:
    record = InvocationRecord(
        request_hash="",
        serverless_request_id="f",
        function_id="f",
        enqueued_at=BEFORE,
        deadline=DEADLINE,
        updated_at=BEFORE,
    )
    return msgspec.structs.replace(record, state=state, termination=termination)
