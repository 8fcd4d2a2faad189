"""When a run of a unit begins, and when the platform stops or deletes the unit."""

from datetime import datetime
from typing import Any

import msgspec
import pytest

from gpu_runtime.contract.crd.gpu_unit import GPUUnit
from gpu_runtime.contract.crd.well_known import Annotation
from gpu_runtime.contract.unit_lifetime import (
    EndAction,
    RunTimes,
    UnitEnd,
    deletes_at,
    is_run_ended,
    next_end,
    recorded_run,
    run_times,
    stops_at,
)

parse_time = datetime.fromisoformat
CREATED, NOW = "2030-01-01T00:00:00Z", "2030-01-01T01:00:00Z"


def unit(status: dict[str, Any] | None = None, ended: str = "", **spec: Any) -> GPUUnit:
    annotations = {Annotation.ENDED_RUN: ended} if ended else {}
    return msgspec.convert(
        {
            "metadata": {"name": "web", "creationTimestamp": CREATED, "annotations": annotations},
            "spec": {"specName": "g1.1", "image": "i", **spec},
            "status": status or {},
        },
        GPUUnit,
    )


def test_first_run_begins_with_the_creation() -> None:
    assert run_times(unit(), ready=False, now=NOW) == RunTimes(CREATED, None)


def test_run_keeps_its_times() -> None:
    running = unit({"observedGeneration": 1, "startTime": CREATED})
    assert run_times(running, ready=False, now=NOW) == RunTimes(CREATED, None)
    assert run_times(running, ready=True, now=NOW) == RunTimes(CREATED, NOW)
    ready = unit({"observedGeneration": 1, "startTime": CREATED, "firstReadyTime": CREATED})
    assert run_times(ready, ready=False, now=NOW) == run_times(ready, ready=True, now=NOW) == RunTimes(CREATED, CREATED)


def test_start_after_a_stop_begins_a_new_run() -> None:
    stopped = unit({"observedGeneration": 1, "startTime": CREATED}, running=False)
    assert run_times(stopped, ready=False, now=NOW) == RunTimes()
    assert run_times(unit({"observedGeneration": 2}), ready=False, now=NOW) == RunTimes(NOW, None)


def test_unit_that_was_created_stopped_begins_its_first_run_with_its_start() -> None:
    assert run_times(unit(running=False), ready=False, now=NOW) == RunTimes()
    assert run_times(unit({"observedGeneration": 1}), ready=False, now=NOW) == RunTimes(NOW, None)


def test_start_before_the_stop_was_observed_begins_a_new_run() -> None:
    """The status still describes the run that the platform has ended."""
    status = {"observedGeneration": 1, "startTime": CREATED, "firstReadyTime": CREATED}
    restarted = unit(status, ended=CREATED, maxDurationSeconds=60)
    assert recorded_run(restarted) == RunTimes()
    assert next_end(restarted, recorded_run(restarted)) is None
    assert run_times(restarted, ready=True, now=NOW) == RunTimes(NOW, NOW)


def test_ended_run_stays_ended_until_the_next_start() -> None:
    status = {"observedGeneration": 2, "startTime": CREATED}
    stopped = unit(status, ended=CREATED, running=False)
    assert is_run_ended(stopped)
    assert run_times(stopped, ready=False, now=NOW) == RunTimes(CREATED, None)
    assert not is_run_ended(unit(status | {"startTime": NOW}, ended=CREATED))


def test_maximum_duration_counts_from_the_first_ready() -> None:
    spec = unit(maxDurationSeconds=90).spec
    assert stops_at(spec, RunTimes(CREATED, None)) is None
    assert stops_at(spec, RunTimes(CREATED, NOW)) == parse_time("2030-01-01T01:01:30Z")


def test_extension_postpones_the_stop_and_never_shortens() -> None:
    run = RunTimes(CREATED, CREATED)
    assert stops_at(unit(stopUnlessExtendedSeconds=60).spec, run) == parse_time("2030-01-01T00:01:00Z")
    extended = unit(stopUnlessExtendedSeconds=60, extendedUntil="2030-01-01T03:00:00+01:00").spec
    assert stops_at(extended, run) == parse_time("2030-01-01T02:00:00Z")
    past = unit(stopUnlessExtendedSeconds=60, extendedUntil="2029-01-01T00:00:00Z").spec
    assert stops_at(past, run) == parse_time("2030-01-01T00:01:00Z")


NOT_REPRESENTABLE = ("tomorrow", "2030-01-01T00:00:60Z", "0000-01-01T00:00:00Z", "9999-12-31T23:59:59-14:00")


@pytest.mark.parametrize("text", NOT_REPRESENTABLE)
def test_unit_with_an_unreadable_extension_is_not_stopped(text: str) -> None:
    """The caller wanted to extend it. Its spec is invalid, so its condition asks for another time."""
    spec = unit(stopUnlessExtendedSeconds=60, extendedUntil=text).spec
    assert stops_at(spec, RunTimes(CREATED)) is None


@pytest.mark.parametrize("text", NOT_REPRESENTABLE)
def test_unreadable_start_begins_a_new_run(text: str) -> None:
    """Every client that can write the status can write such a time."""
    broken = unit({"observedGeneration": 1, "startTime": text}, stopUnlessExtendedSeconds=60)
    assert stops_at(broken.spec, RunTimes(text, text)) is None or text.startswith("9999")
    if not text.startswith("9999"):
        assert run_times(broken, ready=False, now=NOW) == RunTimes(NOW, None)


def test_lower_case_extension_is_a_time() -> None:
    spec = unit(stopUnlessExtendedSeconds=60, extendedUntil="2030-01-31t12:00:00z").spec
    assert stops_at(spec, RunTimes(CREATED)) == parse_time("2030-01-31T12:00:00Z")


def test_extension_does_not_postpone_the_maximum_duration() -> None:
    both = unit(maxDurationSeconds=30, stopUnlessExtendedSeconds=60, extendedUntil="2031-01-01T00:00:00Z").spec
    assert stops_at(both, RunTimes(CREATED, CREATED)) == parse_time("2030-01-01T00:00:30Z")


def test_stopped_unit_is_only_deleted() -> None:
    stopped = unit({"startTime": CREATED}, stopUnlessExtendedSeconds=60, deleteAfterSeconds=120, running=False)
    deletion = UnitEnd(EndAction.DELETE, parse_time("2030-01-01T00:02:00Z"))
    assert next_end(stopped, RunTimes(CREATED)) == deletion
    assert deletes_at(stopped) == deletion.at


def test_earlier_end_comes_first_and_a_deletion_precedes_a_stop() -> None:
    run = RunTimes(CREATED, CREATED)
    stop_first = next_end(unit(maxDurationSeconds=60, deleteAfterSeconds=61), run)
    assert stop_first == UnitEnd(EndAction.STOP, parse_time("2030-01-01T00:01:00Z"))
    delete_first = next_end(unit(maxDurationSeconds=60, deleteAfterSeconds=60), run)
    assert delete_first == UnitEnd(EndAction.DELETE, parse_time("2030-01-01T00:01:00Z"))
    assert next_end(unit(), run) is None
