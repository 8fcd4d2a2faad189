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
from gpu_runtime.kube.meta import parse_timestamp

LIFETIME_FIELDS = {
    "max_duration_seconds": "maxDurationSeconds",
    "stop_unless_extended_seconds": "stopUnlessExtendedSeconds",
    "delete_after_seconds": "deleteAfterSeconds",
}
"""The fields of the spec, with their names in JSON."""
STOP_FIELDS = ("max_duration_seconds", "stop_unless_extended_seconds")


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
    if parse_timestamp(status.start_time) is None or ended:
        is_first_run = status.observed_generation == 0 and unit.metadata.creation_timestamp is not None
        return RunTimes(unit.metadata.creation_timestamp if is_first_run else now, now if ready else None)
    return RunTimes(status.start_time, status.first_ready_time or (now if ready else None))


def stops_at(spec: GPUUnitSpec, run: RunTimes) -> datetime | None:
    """Return when the platform stops the unit. None: it is stopped, or has no such time, or was not Ready yet."""
    times: list[datetime] = []
    if not spec.running:
        return None
    if at := _later(run.first_ready, spec.max_duration_seconds):
        times.append(at)
    extended_until = extension(spec)
    is_unreadable = spec.extended_until is not None and extended_until is None
    if not is_unreadable and (at := _later(run.start, spec.stop_unless_extended_seconds)):
        times.append(max(at, extended_until or at))
    return min(times, default=None)


def _later(time: str | None, seconds: int | None) -> datetime | None:
    """Return the time plus the seconds. None: one of them is missing, or Python cannot represent the time."""
    parsed = parse_timestamp(time)
    if parsed is None or seconds is None:
        return None
    try:
        return parsed.astimezone(UTC) + timedelta(seconds=seconds)
    except OverflowError:
        return None


def extension(spec: GPUUnitSpec) -> datetime | None:
    """Return the time until which the unit is extended. None: it is not extended, or the text is not a time."""
    return _later((spec.extended_until or "").upper(), 0)


def deletes_at(unit: GPUUnit) -> datetime | None:
    return _later(unit.metadata.creation_timestamp, unit.spec.delete_after_seconds)


def next_end(unit: GPUUnit, run: RunTimes) -> UnitEnd | None:
    """Return the next end of the unit. If both ends have the same time, the unit is deleted."""
    ends = ((EndAction.DELETE, deletes_at(unit)), (EndAction.STOP, stops_at(unit.spec, run)))
    return min((UnitEnd(action, at) for action, at in ends if at is not None), key=lambda end: end.at, default=None)


def recorded_run(unit: GPUUnit) -> RunTimes:
    """Return the run that the status describes. It has no times if the platform has ended this run."""
    status = unit.status
    return RunTimes() if is_run_ended(unit) else RunTimes(status.start_time, status.first_ready_time)


def format_time(time: datetime | None) -> str | None:
    """Return the time in the format of Kubernetes, in whole seconds. `strftime` would not pad the year."""
    return None if time is None else f"{time.astimezone(UTC).replace(microsecond=0, tzinfo=None).isoformat()}Z"
