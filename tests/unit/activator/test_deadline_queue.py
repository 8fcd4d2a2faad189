"""The deadline queue returns the sequences of expired invocations in the order of their deadlines."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.activator.deadline_queue import DeadlineQueue
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def dispatch(name: str, seconds: float) -> Dispatch:
    invocation = Invocation(invocation_id=name, serverless_request_id="f", function_id="f", timeout_seconds=seconds)
    return Dispatch(invocation=invocation, deadline=BEGIN + timedelta(seconds=seconds), dispatched_at=BEGIN)


def pop_expired(queue: DeadlineQueue, seconds: float) -> list[int]:
    sequences: list[int] = []
    while (sequence := queue.first_expired(BEGIN + timedelta(seconds=seconds))) is not None:
        sequences.append(sequence)
        queue.pop_first()
    return sequences


def test_expired_invocations_are_returned_once_in_deadline_order() -> None:
    queue = DeadlineQueue()
    for sequence, seconds in enumerate((30, 10, 20, 10), start=1):
        queue.add(sequence, dispatch(f"i{sequence}", seconds))
    assert pop_expired(queue, 9) == []
    assert pop_expired(queue, 20) == [2, 4, 3]
    assert pop_expired(queue, 20) == []
    assert len(queue) == 1


def test_invocation_is_found_by_id_until_it_is_removed() -> None:
    queue = DeadlineQueue()
    queue.add(7, dispatch("mine", 10))
    assert (queue.sequence_of("mine"), queue.sequence_of("other")) == (7, None)
    assert pop_expired(queue, 10) == [7]
    assert queue.sequence_of("mine") is None
