"""Reports the results of a benchmark: a table on stdout, a JSON file, and an exit status."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from bench.host_info import HostInfo, host_info
from localcluster.paths import LOCAL_STATE_DIR

REPORT_FOLDER = LOCAL_STATE_DIR / "bench"
_STARTED_AT = time.perf_counter()


class Row(msgspec.Struct):
    label: str
    value: float
    unit: str = ""
    floor: float | None = None
    """The value of a minimal implementation that is measured in the same run. It is the lower bound of a cost, and the
    upper bound of a rate."""
    target: str = ""
    """The limit that the value must not exceed, as text. `>=` marks a lower limit."""
    missed: bool = False

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None


class Chart(msgspec.Struct):
    """A line chart of values against a size."""

    name: str
    """The last part of the file name."""
    title: str
    x_label: str
    x_values: list[int]
    series: dict[str, list[float]]
    """The lines, by name. A line has one value for each x value."""
    target: float | None = None
    """The target, if the values have one."""


class TimelineChart(msgspec.Struct):
    """One horizontal bar for each way to do something, with the times of its steps."""

    name: str
    """The last part of the file name."""
    title: str
    steps: dict[str, dict[str, float]]
    """For each bar: the milliseconds from the start until the end of each step, in the order of time."""


class BenchmarkResult(msgspec.Struct):
    rows: list[Row]
    charts: list[Chart]
    details: Any
    """All measured values. They are only written to the JSON file."""
    timelines: list[TimelineChart] = []


class Report(msgspec.Struct):
    subject: str
    host: HostInfo
    duration_seconds: float
    """The duration of the benchmark."""
    rows: list[Row]
    charts: list[Chart]
    details: Any
    timelines: list[TimelineChart] = []


def report_and_exit(subject: str, measure: Callable[[], BenchmarkResult]) -> NoReturn:
    """Run the benchmark, print and save its report, and exit. The exit status is 1 if a target is missed."""
    host, started_at = host_info(), time.perf_counter()
    result = measure()
    duration = time.perf_counter() - started_at
    report = Report(subject, host, duration, result.rows, result.charts, result.details, result.timelines)
    path = REPORT_FOLDER / f"{subject}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\n{host}\n")
    print_table(report.rows)
    print(
        f"\nTook {report.duration_seconds:.0f} s. All figures: {path.relative_to(LOCAL_STATE_DIR.parent)}\n", flush=True
    )
    sys.exit(any(row.missed for row in report.rows))


def load_reports() -> list[Report]:
    """Return the latest report of each benchmark."""
    return [msgspec.json.decode(path.read_bytes(), type=Report) for path in sorted(REPORT_FOLDER.glob("*.json"))]


def log_progress(text: str) -> None:
    """Print a progress line with the elapsed time to stderr."""
    print(f"{time.perf_counter() - _STARTED_AT:4.0f} s … {text}", file=sys.stderr, flush=True)


def quantile(sorted_values: Sequence[float], share: float) -> float:
    """Return the quantile of sorted values: the smallest value that is not exceeded by this share of the values."""
    return sorted_values[math.ceil(share * len(sorted_values)) - 1] if sorted_values else math.nan


def print_table(rows: Sequence[Row]) -> None:
    width = max(len(row.label) for row in rows)
    print(f"{'':{width}}{'value':>12}{'floor':>12}{'ratio':>8}  {'target':<16}")
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        status = "MISSED" if row.missed else "holds" if row.target else ""
        value, floor = _format_value(row.value, row.unit), _format_value(row.floor, row.unit)
        print(f"{row.label:{width}}{value:>12}{floor:>12}{ratio:>8}  {row.target:<16}{status}".rstrip())


def _format_value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 3 if value < 1 else 2 if value < 10 else 1
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + (f" {unit}" if unit else "")
