"""What is over, and under which number it lies."""

from datetime import UTC, datetime, timedelta

from gpu_runtime.activator.deadline_queue import Waiting
from gpu_runtime.activator.runtime_api_client import refusal
from gpu_runtime.contract.errors import Conflict, NoStock, Rejected, Unavailable
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation

BEGIN = datetime(2026, 1, 1, tzinfo=UTC)


def dispatch(name: str, seconds: float) -> Dispatch:
    invocation = Invocation(invocation_id=name, serverless_request_id="f", timeout_seconds=seconds)
    return Dispatch(invocation=invocation, deadline=BEGIN + timedelta(seconds=seconds), dispatched_at=BEGIN)


def over(waiting: Waiting, seconds: float) -> list[int]:
    found: list[int] = []
    while (sequence := waiting.first_over(BEGIN + timedelta(seconds=seconds))) is not None:
        found.append(sequence)
        waiting.forget_first()
    return found


def test_what_is_over_comes_out_once_the_earliest_first() -> None:
    waiting = Waiting()
    for sequence, seconds in enumerate((30, 10, 20, 10), start=1):
        waiting.note(sequence, dispatch(f"i{sequence}", seconds))
    assert over(waiting, 9) == []
    assert over(waiting, 20) == [2, 4, 3]
    assert over(waiting, 20) == []
    assert len(waiting) == 1


def test_an_invocation_is_found_by_its_id_and_what_ended_is_forgotten() -> None:
    waiting = Waiting()
    waiting.note(7, dispatch("mine", 10))
    assert (waiting.find("mine"), waiting.find("other")) == (7, None)
    assert over(waiting, 10) == [7]
    assert waiting.find("mine") is None


def test_refusals_of_the_api_keep_their_meaning() -> None:
    assert isinstance(refusal(409, b'{"error": {"code": "no_stock", "message": "none"}}'), NoStock)
    assert type(refusal(409, b'{"error": {"code": "conflict", "message": "taken"}}')) is Conflict
    assert type(refusal(409, b"<html>")) is Conflict
    assert isinstance(refusal(400, b'{"error": {"code": "invalid"}}'), Rejected)
    assert isinstance(refusal(503, b""), Unavailable)
    assert isinstance(refusal(429, b"{}"), Unavailable)
