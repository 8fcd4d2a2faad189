"""What a benchmark found: a table for people, JSON for whoever goes on from there, and a status for the shell."""

import math
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NoReturn

import msgspec

from bench.host_info import Machine, machine
from localcluster.paths import LOCAL

FOLDER = LOCAL / "bench"
_STARTED = time.perf_counter()


class Row(msgspec.Struct):
    what: str
    figure: float
    unit: str = ""
    floor: float | None = None
    """The least it could be, measured in the same run; of a rate, the most."""
    target: str = ""
    """At most so much."""
    missed: bool = False

    @property
    def ratio(self) -> float | None:
        return self.figure / self.floor if self.floor else None


class Chart(msgspec.Struct):
    """How figures grow."""

    name: str
    """Of its file."""
    title: str
    across: str
    """What is counted from left to right."""
    points: list[int]
    lines: dict[str, list[float]]
    """A figure for each of the points."""
    limit: float | None = None
    """The target, where there is one."""


class Findings(msgspec.Struct):
    rows: list[Row]
    charts: list[Chart]
    details: Any
    """All that was measured, for JSON alone."""


class Report(msgspec.Struct):
    subject: str
    machine: Machine
    seconds: float
    """That the benchmark took."""
    rows: list[Row]
    charts: list[Chart]
    details: Any


def present(subject: str, measure: Callable[[], Findings]) -> NoReturn:
    """Measure, print, write, and end this process: with 1 where a target is missed."""
    on, started = machine(), time.perf_counter()
    found = measure()
    report = Report(subject, on, time.perf_counter() - started, found.rows, found.charts, found.details)
    path = FOLDER / f"{subject}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\n{on}\n")
    print_table(report.rows)
    print(f"\nTook {report.seconds:.0f} s. All figures: {path.relative_to(LOCAL.parent)}\n", flush=True)
    sys.exit(any(row.missed for row in report.rows))


def reports() -> list[Report]:
    """Those of the last runs."""
    return [msgspec.json.decode(path.read_bytes(), type=Report) for path in sorted(FOLDER.glob("*.json"))]


def tell(what: str) -> None:
    """How far it is."""
    print(f"{time.perf_counter() - _STARTED:4.0f} s … {what}", file=sys.stderr, flush=True)


def quantile(rising: Sequence[float], share: float) -> float:
    """The least value that so great a share of all does not exceed."""
    return rising[math.ceil(share * len(rising)) - 1] if rising else math.nan


def print_table(rows: Sequence[Row]) -> None:
    width = max(len(row.what) for row in rows)
    print(f"{'':{width}}{'figure':>12}{'floor':>12}{'ratio':>8}  {'at most':<16}")
    for row in rows:
        ratio = f"{row.ratio:.2f}" if row.ratio is not None else ""
        verdict = "MISSED" if row.missed else "holds" if row.target else ""
        print(
            f"{row.what:{width}}{_amount(row.figure, row.unit):>12}{_amount(row.floor, row.unit):>12}{ratio:>8}"
            f"  {row.target:<16}{verdict}".rstrip()
        )


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    digits = 3 if value < 1 else 2 if value < 10 else 1
    text = f"{value:.{digits}f}"
    return (text.rstrip("0").rstrip(".") if "." in text else text) + (f" {unit}" if unit else "")
