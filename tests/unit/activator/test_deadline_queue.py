"""What is over, and under which number it lies."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.activator.deadline_queue import DeadlineQueue
from gpu_runtime.activator.runtime_api_client import fault_from_response
from gpu_runtime.contract.errors import Conflict, NoStock, Rejected, Unavailable
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def dispatch(name: str, seconds: float) -> Dispatch:
    invocation = Invocation(invocation_id=name, serverless_request_id="f", timeout_seconds=seconds)
    return Dispatch(invocation=invocation, deadline=BEGIN + timedelta(seconds=seconds), dispatched_at=BEGIN)


def pop_expired(waiting: DeadlineQueue, seconds: float) -> list[int]:
    found: list[int] = []
    while (sequence := waiting.first_expired(BEGIN + timedelta(seconds=seconds))) is not None:
        found.append(sequence)
        waiting.pop_first()
    return found


def test_expired_invocations_are_returned_once_in_deadline_order() -> None:
    waiting = DeadlineQueue()
    for sequence, seconds in enumerate((30, 10, 20, 10), start=1):
        waiting.add(sequence, dispatch(f"i{sequence}", seconds))
    assert pop_expired(waiting, 9) == []
    assert pop_expired(waiting, 20) == [2, 4, 3]
    assert pop_expired(waiting, 20) == []
    assert len(waiting) == 1


def test_invocation_is_found_by_id_until_it_is_removed() -> None:
    waiting = DeadlineQueue()
    waiting.add(7, dispatch("mine", 10))
    assert (waiting.sequence_of("mine"), waiting.sequence_of("other")) == (7, None)
    assert pop_expired(waiting, 10) == [7]
    assert waiting.sequence_of("mine") is None


def test_runtime_api_error_responses_map_to_faults() -> None:
    assert isinstance(fault_from_response(409, b'{"error": {"code": "no_stock", "message": "none"}}'), NoStock)
    assert type(fault_from_response(409, b'{"error": {"code": "conflict", "message": "taken"}}')) is Conflict
    assert type(fault_from_response(409, b"<html>")) is Conflict
    assert isinstance(fault_from_response(400, b'{"error": {"code": "invalid"}}'), Rejected)
    assert isinstance(fault_from_response(503, b""), Unavailable)
    assert isinstance(fault_from_response(429, b"{}"), Unavailable)
