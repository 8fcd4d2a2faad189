"""The lifetime of a unit: when its current run began, and when the platform stops or deletes it. Pure functions.

A run begins with the creation or with a start of the unit, and ends when the unit is stopped. `status` holds the times
of the run, and the controller manager computes them with `run_times`.

The controller manager records the end of a run in an annotation, in the write that stops the unit. So a start that
arrives before the controller manager has observed the stop begins a new run, too.
"""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from enum import StrEnum

from gpu_runtime.contract.crd.gpu_unit import GPUUnit, GPUUnitSpec
from gpu_runtime.contract.crd.well_known import Annotation

LIFETIME_FIELDS = {
    "max_duration_seconds": "maxDurationSeconds",
    "stop_unless_extended_seconds": "stopUnlessExtendedSeconds",
    "delete_after_seconds": "deleteAfterSeconds",
}
"""The fields of the spec, with their names in JSON."""


class EndAction(StrEnum):
    STOP = "stop"
    DELETE = "delete"


@dataclass(frozen=True)
class UnitEnd:
    """What the platform does to the unit at the end of its lifetime, and when."""

    action: EndAction
    at: datetime


@dataclass(frozen=True)
class RunTimes:
    """When the current run of a unit began, and when the unit was Ready for the first time in this run."""

    start: str | None = None
    first_ready: str | None = None


def is_run_ended(unit: GPUUnit) -> bool:
    """Whether the platform has stopped the run that the status describes, because its time was over."""
    start = unit.status.start_time
    return start is not None and unit.metadata.annotations.get(Annotation.ENDED_RUN) == start


def run_times(unit: GPUUnit, *, ready: bool, now: str) -> RunTimes:
    """Return the times of the current run. A stopped unit keeps the times only if the platform has stopped it."""
    status, ended = unit.status, is_run_ended(unit)
    if not unit.spec.running:
        return RunTimes(status.start_time, status.first_ready_time) if ended else RunTimes()
    if status.start_time is None or ended:
        is_first_run = status.observed_generation == 0 and unit.metadata.creation_timestamp is not None
        return RunTimes(unit.metadata.creation_timestamp if is_first_run else now, now if ready else None)
    return RunTimes(status.start_time, status.first_ready_time or (now if ready else None))


def stops_at(spec: GPUUnitSpec, run: RunTimes) -> datetime | None:
    """Return when the platform stops the unit. None: it is stopped, or has no such time, or was not Ready yet."""
    times: list[datetime] = []
    if not spec.running:
        return None
    if spec.max_duration_seconds is not None and run.first_ready is not None:
        times.append(parse_time(run.first_ready) + timedelta(seconds=spec.max_duration_seconds))
    if spec.stop_unless_extended_seconds is not None and run.start is not None:
        unextended = parse_time(run.start) + timedelta(seconds=spec.stop_unless_extended_seconds)
        times.append(max(unextended, extension(spec) or unextended))
    return min(times, default=None)


def extension(spec: GPUUnitSpec) -> datetime | None:
    """Return the time until which the unit is extended. None: it is not extended, or the text is not a time."""
    try:
        return parse_time(spec.extended_until).astimezone(UTC) if spec.extended_until else None
    except (ValueError, OverflowError):  # RFC 3339 allows leap seconds and the year 0, which Python cannot represent
        return None


def deletes_at(unit: GPUUnit) -> datetime | None:
    created, seconds = unit.metadata.creation_timestamp, unit.spec.delete_after_seconds
    return None if created is None or seconds is None else parse_time(created) + timedelta(seconds=seconds)


def next_end(unit: GPUUnit, run: RunTimes) -> UnitEnd | None:
    """Return the next end of the unit. If both ends have the same time, the unit is deleted."""
    ends = ((EndAction.DELETE, deletes_at(unit)), (EndAction.STOP, stops_at(unit.spec, run)))
    return min((UnitEnd(action, at) for action, at in ends if at is not None), key=lambda end: end.at, default=None)


def recorded_run(unit: GPUUnit) -> RunTimes:
    """Return the run that the status describes. It has no times if the platform has ended this run."""
    status = unit.status
    return RunTimes() if is_run_ended(unit) else RunTimes(status.start_time, status.first_ready_time)


def parse_time(text: str) -> datetime:
    """Return the time. A time that kubectl wrote without a time zone is UTC."""
    parsed = datetime.fromisoformat(text)
    return parsed if parsed.tzinfo else parsed.replace(tzinfo=UTC)


def format_time(time: datetime | None) -> str | None:
    return None if time is None else time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
