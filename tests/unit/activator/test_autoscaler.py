"""The autoscaler computes the number of workers and decides which workers to create, drain, retire, start or stop."""

from typing import Any

import pytest
from msgspec import structs

from gpu_runtime.activator.autoscaler import (
    CreateWorkers,
    DrainWorker,
    RetireWorker,
    ScalingDecision,
    StartFunctionUnit,
    StopFunctionUnit,
    WorkerState,
    decide,
    desired_workers,
    is_outdated,
    worker_state,
)
from gpu_runtime.activator.settings import ScalingSettings
from gpu_runtime.activator.worker_liveness import WorkerStatus
from gpu_runtime.contract.crd.gpu_unit import Serverless
from gpu_runtime.contract.crd.well_known import Annotation
from tests.unit.activator.activator_objects import observed, unit, worker

STARTING, SERVING, DRAINING = WorkerState.STARTING, WorkerState.SERVING, WorkerState.DRAINING
UNHEALTHY, RETIRING, TERMINATING = WorkerState.UNHEALTHY, WorkerState.RETIRING, WorkerState.TERMINATING
SCALING = ScalingSettings(worker_liveness_timeout_seconds=100, failed_worker_grace_seconds=10)


@pytest.mark.parametrize(
    ("outstanding", "concurrency", "min_available", "max_workers", "expected"),
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
def test_desired_workers_follow_outstanding_invocations_within_limits(
    outstanding: int, concurrency: int, min_available: int, max_workers: int, expected: int
) -> None:
    serverless = Serverless(concurrency=concurrency, min_available_count=min_available, max_workers=max_workers)
    assert desired_workers(serverless, outstanding) == expected


def drained_names(decisions: list[ScalingDecision]) -> list[str]:
    return [each.worker.unit.metadata.name for each in decisions if isinstance(each, DrainWorker)]


def test_outstanding_invocations_without_workers_create_workers() -> None:
    assert decide(observed(3, max_workers=10)) == [CreateWorkers(3)]


def test_starting_workers_count_toward_the_desired_number() -> None:
    assert decide(observed(3, worker(0, STARTING), worker(1), max_workers=10)) == [CreateWorkers(1)]


def test_worker_units_in_any_state_never_exceed_max_workers() -> None:
    workers = (worker(0), worker(1, TERMINATING), worker(2, DRAINING))
    assert CreateWorkers(1) not in decide(observed(9, *workers, max_workers=3))
    assert [each for each in decide(observed(9, *workers, max_workers=4)) if isinstance(each, CreateWorkers)] == [
        CreateWorkers(1)
    ]


def test_running_function_unit_counts_as_a_worker() -> None:
    own_unit = worker(0, is_function_unit=True)
    assert decide(observed(1, own_unit, max_workers=3)) == []
    assert decide(observed(5, own_unit, max_workers=3)) == [CreateWorkers(2)]


def test_unknown_backlog_leads_to_no_decision() -> None:
    assert decide(observed(None, max_workers=3)) == []
    assert decide(observed(None, worker(0, idle=1e6), worker(1, idle=1e6), max_workers=3)) == []


def test_min_available_workers_are_created_with_unknown_backlog() -> None:
    assert decide(observed(None, min_available_count=2, max_workers=3)) == [CreateWorkers(2)]


def test_idle_workers_are_drained_after_the_idle_timeout() -> None:
    before_timeout, after_timeout = worker(0, idle=299), worker(1, idle=300)
    assert drained_names(decide(observed(0, before_timeout, after_timeout, max_workers=3))) == ["f-w1"]


def test_busy_and_starting_workers_are_not_drained() -> None:
    assert decide(observed(0, worker(0, idle=None), worker(1, STARTING), max_workers=3)) == []


def test_only_surplus_workers_are_drained_highest_slot_first() -> None:
    idle = [worker(slot, idle=1e6) for slot in (2, 10, 0, 1)]
    assert drained_names(decide(observed(1, *idle, max_workers=20))) == ["f-w10", "f-w2", "f-w1"]
    assert drained_names(decide(observed(0, *idle, min_available_count=2, max_workers=20))) == ["f-w10", "f-w2"]


def test_function_unit_is_never_drained() -> None:
    assert decide(observed(0, worker(0, idle=1e6, is_function_unit=True), max_workers=3)) == []


def test_idle_worker_above_max_workers_is_drained_immediately() -> None:
    assert drained_names(decide(observed(9, worker(0), worker(1, idle=0.1), max_workers=1))) == ["f-w1"]


def test_unhealthy_and_draining_workers_are_deleted_and_replaced() -> None:
    decisions = decide(observed(2, worker(0, UNHEALTHY), worker(1, RETIRING), worker(2, DRAINING), max_workers=5))
    assert [type(each) for each in decisions] == [RetireWorker, RetireWorker, DrainWorker, CreateWorkers]
    assert decisions[-1] == CreateWorkers(2)


def test_no_worker_is_created_during_backoff() -> None:
    assert decide(observed(5, may_create=False, max_workers=5)) == []


def test_idle_outdated_worker_is_drained() -> None:
    old, busy = worker(0, idle=0.0, outdated=True), worker(1, outdated=True)
    assert decide(observed(2, old, busy, max_workers=5)) == [DrainWorker(old)]


def test_busy_outdated_workers_are_replaced_one_at_a_time() -> None:
    old, last, new = worker(0, outdated=True), worker(1, outdated=True), worker(2)
    assert decide(observed(9, old, last, new, max_workers=3)) == [DrainWorker(last, force=True)]
    draining, starting = worker(1, DRAINING, outdated=True), worker(1, STARTING)
    assert decide(observed(9, old, draining, new, max_workers=3)) == [DrainWorker(draining)]
    assert decide(observed(9, old, starting, new, max_workers=3)) == []
    assert decide(observed(9, old, worker(1), new, max_workers=3)) == [DrainWorker(old, force=True)]


def test_busy_worker_above_max_workers_is_drained_with_force() -> None:
    assert decide(observed(9, worker(0), worker(1), max_workers=1)) == [DrainWorker(worker(1), force=True)]
    assert decide(observed(9, worker(0, is_function_unit=True), max_workers=0)) == []


def test_function_with_a_storage_starts_for_work_and_stops_when_idle() -> None:
    own_unit = worker(0, idle=300, is_function_unit=True)
    assert decide(observed(4, mounts=True)) == [StartFunctionUnit()]
    assert decide(observed(0, mounts=True)) == []
    assert decide(observed(1, own_unit, mounts=True)) == []
    assert decide(observed(0, own_unit, mounts=True)) == [StopFunctionUnit(own_unit)]
    assert decide(observed(None, own_unit, mounts=True)) == []
    assert decide(observed(0, own_unit, mounts=True, min_available_count=1)) == []


def test_function_with_a_storage_stops_its_draining_worker_before_restart() -> None:
    own_unit = worker(0, DRAINING, is_function_unit=True)
    assert decide(observed(3, own_unit, mounts=True)) == [StopFunctionUnit(own_unit)]


@pytest.mark.parametrize(("phase", "starts"), [("Empty", True), ("Ready", False), ("Progressing", False)])
def test_stopping_function_is_not_started(phase: str, starts: bool) -> None:
    assert decide(observed(1, mounts=True, phase=phase)) == ([StartFunctionUnit()] if starts else [])


def worker_status(*, draining: bool = False, heartbeat_seconds: float = 1) -> WorkerStatus:
    return WorkerStatus("one", 1, 0, 0, 0, 0, heartbeat_seconds, draining)


@pytest.mark.parametrize(
    ("options", "status", "silent_seconds", "state"),
    [
        ({}, None, 99, STARTING),
        ({}, None, 101, UNHEALTHY),
        ({"phase": "Failed"}, None, 9, STARTING),
        ({"phase": "Failed"}, None, 11, UNHEALTHY),
        ({}, worker_status(), 99, SERVING),
        ({}, worker_status(), 101, UNHEALTHY),
        ({}, worker_status(draining=True), 0, DRAINING),
        ({}, worker_status(draining=True), 101, UNHEALTHY),
        ({"phase": "Failed"}, worker_status(draining=True), 11, UNHEALTHY),
        ({"phase": "Failed"}, worker_status(heartbeat_seconds=20), 59, SERVING),
        ({"phase": "Failed"}, worker_status(heartbeat_seconds=20), 61, UNHEALTHY),
        ({"annotations": {Annotation.RETIRING: "true"}}, worker_status(), 0, RETIRING),
        ({"deletion_timestamp": "2026-01-01T00:00:00Z"}, worker_status(), 0, TERMINATING),
    ],
)
def test_worker_state_of_a_unit(
    options: dict[str, Any], status: WorkerStatus | None, silent_seconds: float, state: object
) -> None:
    assert worker_state(unit("f-w0", worker_of="f", **options), status, silent_seconds, SCALING) is state


def test_worker_is_outdated_after_a_spec_change_but_not_after_a_limit_change() -> None:
    function = unit("f", serverless={"max_workers": 3}).spec
    current = unit("f-w0", worker_of="f", serverless={"max_workers": 1, "idle_timeout_seconds": 5}).spec
    assert not is_outdated(current, function)
    assert is_outdated(current, structs.replace(function, image="other"))
    assert is_outdated(unit("f-w0", worker_of="f", serverless={"concurrency": 2}).spec, function)


def test_decisions_have_distinct_metric_labels() -> None:
    decisions = (CreateWorkers, DrainWorker, RetireWorker, StartFunctionUnit, StopFunctionUnit)
    assert [each.label for each in decisions] == ["create", "drain", "retire", "start", "stop"]
