"""How many workers a function gets, and which of them go."""

from datetime import UTC, datetime
from typing import Any

import pytest
from msgspec import structs

from gpu_runtime.activator.autoscaler import (
    Create,
    Decision,
    Drain,
    Retire,
    Sleep,
    Wake,
    WorkerState,
    decide,
    desired,
    is_outdated,
    state_of,
)
from gpu_runtime.activator.settings import Scaling
from gpu_runtime.activator.worker_liveness import Heard
from gpu_runtime.contract.crd.gpu_unit import Serverless
from gpu_runtime.contract.crd.well_known import Annotation
from tests.unit.activator.objects import observed, unit, worker

STARTING, SERVING, DRAINING = WorkerState.STARTING, WorkerState.SERVING, WorkerState.DRAINING
BROKEN, RETIRING, LEAVING = WorkerState.BROKEN, WorkerState.RETIRING, WorkerState.LEAVING
PATIENCE = Scaling(start_seconds=100, failed_seconds=10)


@pytest.mark.parametrize(
    ("outstanding", "concurrency", "least", "most", "workers"),
    [
        (0, 1, 0, 5, 0),
        (1, 1, 0, 5, 1),
        (7, 2, 0, 5, 4),
        (8, 2, 0, 5, 4),
        (9, 2, 0, 5, 5),
        (1000, 1, 0, 5, 5),
        (0, 1, 2, 5, 2),
        (3, 1, 2, 5, 3),
    ],
)
def test_there_is_a_worker_for_every_so_many_invocations_within_the_limits(
    outstanding: int, concurrency: int, least: int, most: int, workers: int
) -> None:
    wants = Serverless(concurrency=concurrency, min_available_count=least, max_workers=most)
    assert desired(wants, outstanding) == workers


def drained(decisions: list[Decision]) -> list[str]:
    return [each.worker.unit.metadata.name for each in decisions if isinstance(each, Drain)]


def test_work_without_workers_makes_them() -> None:
    assert decide(observed(3, max_workers=10)) == [Create(3)]


def test_workers_that_are_still_starting_count() -> None:
    assert decide(observed(3, worker(0, STARTING), worker(1), max_workers=10)) == [Create(1)]


def test_there_are_never_more_units_than_workers_allowed_whatever_state_they_are_in() -> None:
    crowd = (worker(0), worker(1, LEAVING), worker(2, DRAINING))
    assert Create(1) not in decide(observed(9, *crowd, max_workers=3))
    assert [each for each in decide(observed(9, *crowd, max_workers=4)) if isinstance(each, Create)] == [Create(1)]


def test_the_functions_own_unit_is_a_worker_while_it_runs() -> None:
    own = worker(0, own=True)
    assert decide(observed(1, own, max_workers=3)) == []
    assert decide(observed(5, own, max_workers=3)) == [Create(2)]


def test_a_backlog_that_is_not_known_changes_nothing() -> None:
    assert decide(observed(None, max_workers=3)) == []
    assert decide(observed(None, worker(0, idle=1e6), worker(1, idle=1e6), max_workers=3)) == []


def test_workers_that_are_always_kept_are_made_even_so() -> None:
    assert decide(observed(None, min_available_count=2, max_workers=3)) == [Create(2)]


def test_idle_workers_go_after_the_functions_time_and_not_before() -> None:
    early, late = worker(0, idle=299), worker(1, idle=300)
    assert drained(decide(observed(0, early, late, max_workers=3))) == ["f-w1"]


def test_a_worker_that_has_work_or_has_said_nothing_yet_does_not_go() -> None:
    assert decide(observed(0, worker(0, idle=None), worker(1, STARTING), max_workers=3)) == []


def test_only_so_many_go_as_are_not_needed_the_last_slots_first() -> None:
    idle = [worker(slot, idle=1e6) for slot in (2, 10, 0, 1)]
    assert drained(decide(observed(1, *idle, max_workers=20))) == ["f-w10", "f-w2", "f-w1"]
    assert drained(decide(observed(0, *idle, min_available_count=2, max_workers=20))) == ["f-w10", "f-w2"]


def test_the_functions_own_unit_is_not_taken_away() -> None:
    assert decide(observed(0, worker(0, idle=1e6, own=True), max_workers=3)) == []


def test_above_the_limit_a_worker_goes_as_soon_as_it_is_idle() -> None:
    assert drained(decide(observed(9, worker(0), worker(1, idle=0.1), max_workers=1))) == ["f-w1"]


def test_what_does_not_serve_any_more_is_finished_off_and_replaced() -> None:
    decisions = decide(observed(2, worker(0, BROKEN), worker(1, RETIRING), worker(2, DRAINING), max_workers=5))
    assert [type(each) for each in decisions] == [Retire, Retire, Drain, Create]
    assert decisions[-1] == Create(2)


def test_while_workers_fail_no_more_are_made() -> None:
    assert decide(observed(5, may_create=False, max_workers=5)) == []


def test_a_worker_of_an_older_version_goes_when_it_has_no_work() -> None:
    old, busy = worker(0, idle=0.0, outdated=True), worker(1, outdated=True)
    assert decide(observed(2, old, busy, max_workers=5)) == [Drain(old)]


def test_workers_of_an_older_version_that_always_have_work_are_replaced_one_at_a_time() -> None:
    old, last, new = worker(0, outdated=True), worker(1, outdated=True), worker(2)
    assert decide(observed(9, old, last, new, max_workers=3)) == [Drain(last, finishing=True)]
    going, coming = worker(1, DRAINING, outdated=True), worker(1, STARTING)
    assert decide(observed(9, old, going, new, max_workers=3)) == [Drain(going)]
    assert decide(observed(9, old, coming, new, max_workers=3)) == []
    assert decide(observed(9, old, worker(1), new, max_workers=3)) == [Drain(old, finishing=True)]


def test_above_the_limit_one_that_always_has_work_is_to_finish_it() -> None:
    assert decide(observed(9, worker(0), worker(1), max_workers=1)) == [Drain(worker(1), finishing=True)]
    assert decide(observed(9, worker(0, own=True), max_workers=0)) == []


def test_a_function_with_a_storage_wakes_for_work_and_sleeps_when_idle() -> None:
    own = worker(0, idle=300, own=True)
    assert decide(observed(4, mounts=True)) == [Wake()]
    assert decide(observed(0, mounts=True)) == []
    assert decide(observed(1, own, mounts=True)) == []
    assert decide(observed(0, own, mounts=True)) == [Sleep(own)]
    assert decide(observed(None, own, mounts=True)) == []
    assert decide(observed(0, own, mounts=True, min_available_count=1)) == []


def test_a_function_with_a_storage_whose_worker_takes_no_more_begins_anew() -> None:
    own = worker(0, DRAINING, own=True)
    assert decide(observed(3, own, mounts=True)) == [Sleep(own)]


@pytest.mark.parametrize(("phase", "wakes"), [("Empty", True), ("Ready", False), ("Progressing", False)])
def test_a_function_that_is_still_going_to_sleep_is_not_woken(phase: str, wakes: bool) -> None:
    assert decide(observed(1, mounts=True, phase=phase)) == ([Wake()] if wakes else [])


def heard(*, draining: bool = False) -> Heard:
    return Heard("one", 1, datetime(2026, 1, 1, tzinfo=UTC), 0, 0, 0, 0, draining)


@pytest.mark.parametrize(
    ("about", "said", "waited", "state"),
    [
        ({}, None, 99, STARTING),
        ({}, None, 101, BROKEN),
        ({"phase": "Failed"}, None, 9, STARTING),
        ({"phase": "Failed"}, None, 11, BROKEN),
        ({}, heard(), 99, SERVING),
        ({}, heard(), 101, BROKEN),
        ({}, heard(draining=True), 0, DRAINING),
        ({}, heard(draining=True), 101, BROKEN),
        ({"phase": "Failed"}, heard(draining=True), 11, BROKEN),
        ({"annotations": {Annotation.RETIRING: "true"}}, heard(), 0, RETIRING),
        ({"deletion_timestamp": "2026-01-01T00:00:00Z"}, heard(), 0, LEAVING),
    ],
)
def test_what_a_unit_is_as_a_worker(about: dict[str, Any], said: Heard | None, waited: float, state: object) -> None:
    assert state_of(unit("f-w0", worker_of="f", **about), said, waited, PATIENCE) is state


def test_a_worker_is_outdated_when_what_it_runs_has_changed_and_not_when_limits_have() -> None:
    function = unit("f", serverless={"max_workers": 3}).spec
    made = unit("f-w0", worker_of="f", serverless={"max_workers": 1, "idle_timeout_seconds": 5}).spec
    assert not is_outdated(made, function)
    assert is_outdated(made, structs.replace(function, image="other"))
    assert is_outdated(unit("f-w0", worker_of="f", serverless={"concurrency": 2}).spec, function)
