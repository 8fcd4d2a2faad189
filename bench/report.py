"""What a benchmark found: a table for people, JSON for whoever goes on from there, and a status for the shell."""

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
    """The least it could be, measured in the same run; of a rate, the most."""
    target: str = ""
    """At most so much."""
    missed: bool = False

    @property
    def ratio(self) -> float | None:
        return self.value / self.floor if self.floor else None


class Chart(msgspec.Struct):
    """How figures grow."""

    name: str
    """Of its file."""
    title: str
    x_label: str
    """What is counted from left to right."""
    x_values: list[int]
    series: dict[str, list[float]]
    """A figure for each of the points."""
    target: float | None = None
    """The target, where there is one."""


class BenchmarkResult(msgspec.Struct):
    rows: list[Row]
    charts: list[Chart]
    details: Any
    """All that was measured, for JSON alone."""


class Report(msgspec.Struct):
    subject: str
    host: HostInfo
    duration_seconds: float
    """That the benchmark took."""
    rows: list[Row]
    charts: list[Chart]
    details: Any


def report_and_exit(subject: str, measure: Callable[[], BenchmarkResult]) -> NoReturn:
    """Measure, print, write, and end this process: with 1 where a target is missed."""
    on, started = host_info(), time.perf_counter()
    found = measure()
    report = Report(subject, on, time.perf_counter() - started, found.rows, found.charts, found.details)
    path = REPORT_FOLDER / f"{subject}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\n{on}\n")
    print_table(report.rows)
    print(
        f"\nTook {report.duration_seconds:.0f} s. All figures: {path.relative_to(LOCAL_STATE_DIR.parent)}\n", flush=True
    )
    sys.exit(any(row.missed for row in report.rows))


def load_reports() -> list[Report]:
    """Those of the last runs."""
    return [msgspec.json.decode(path.read_bytes(), type=Report) for path in sorted(REPORT_FOLDER.glob("*.json"))]


def log_progress(what: str) -> None:
    """How far it is."""
    print(f"{time.perf_counter() - _STARTED_AT:4.0f} s … {what}", file=sys.stderr, flush=True)


def quantile(rising: Sequence[float], share: float) -> float:
    """The least value that so great a share of all does not exceed."""
    return rising[math.ceil(share * len(rising)) - 1] if rising else math.nan


def print_table(rows: Sequence[Row]) -> None:
    width = max(len(row.label) for row in rows)
    print(f"{'':{width}}{'figure':>12}{'floor':>12}{'ratio':>8}  {'at most':<16}")
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        verdict = "MISSED" if row.missed else "holds" if row.target else ""
        print(
            f"{row.label:{width}}{_format_value(row.value, row.unit):>12}{_format_value(row.floor, row.unit):>12}{ratio:>8}"
            f"  {row.target:<16}{verdict}".rstrip()
        )


def _format_value(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 3 if value < 1 else 2 if value < 10 else 1
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + (f" {unit}" if unit else "")
