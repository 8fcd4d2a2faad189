"""Compares the reports of two revisions whose benchmarks ran interleaved. Nothing here runs a benchmark.

Each run measures its own floor, so the ratio of a figure to its floor hardly depends on the load of the machine. A
ratio is worse if its median is worse by more than the spread of the runs: the largest ratio of a revision, divided by
its smallest.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

import msgspec

from bench.report import Row

MIN_SPREAD = 1.02
"""Runs with equal counts have no spread. A difference below 2 % is rounding."""


class RunReport(msgspec.Struct):
    """The part of a report that is compared. The other revision may write other fields."""

    subject: str
    rows: list[Row]


@dataclass(frozen=True)
class RatioComparison:
    """The ratios of one row, in the order of the runs."""

    subject: str
    label: str
    base: tuple[float, ...]
    head: tuple[float, ...]
    is_rate: bool = False
    """Whether a higher ratio is better."""

    @property
    def quotient(self) -> float:
        """The median ratio of the head, divided by the median ratio of the base."""
        return _divide(median(self.head), median(self.base))

    @property
    def spread(self) -> float:
        return max(MIN_SPREAD, *(_divide(max(ratios), min(ratios)) for ratios in (self.base, self.head)))

    @property
    def change(self) -> str:
        """Whether the head is worse or better than the base, or empty if the difference is within the spread."""
        worse, better = (self.quotient, _divide(1, self.quotient))[:: -1 if self.is_rate else 1]
        return "WORSE" if worse > self.spread else "better" if better > self.spread else ""


def compare_runs(base: Sequence[RunReport], head: Sequence[RunReport]) -> list[RatioComparison]:
    """Compare all rows that have a floor and that both revisions have. The order is that of the head."""
    base_rows, head_rows = [_rows_with_floor(each) for each in base], [_rows_with_floor(each) for each in head]
    comparisons = []
    for key, row in {key: row for rows in head_rows for key, row in rows.items()}.items():
        base_ratios, head_ratios = _ratios(base_rows, key), _ratios(head_rows, key)
        if base_ratios and head_ratios:
            comparisons.append(RatioComparison(*key, base_ratios, head_ratios, is_rate(row)))
    return comparisons


def missing_rows(base: Sequence[RunReport], head: Sequence[RunReport]) -> list[str]:
    """Return the rows with a floor that only one of the revisions has, for example because a label has changed."""
    base_keys, head_keys = ({key for each in runs for key in _rows_with_floor(each)} for runs in (base, head))
    return [f"{subject}: {label}" for subject, label in sorted(base_keys ^ head_keys)]


def is_rate(row: Row) -> bool:
    return row.target.startswith(">=") or "per second" in row.label


def comparison_table(comparisons: Sequence[RatioComparison]) -> Iterator[str]:
    """Yield the lines of a table: median and range of the ratios of both revisions, their quotient and the spread."""
    width = max(len(f"{each.subject}: {each.label}") for each in comparisons)
    yield f"{'ratio to the floor':{width}}{'base':>22}{'head':>22}{'quotient':>10}{'spread':>8}"
    for each in comparisons:
        name, base, head = f"{each.subject}: {each.label}", _range(each.base), _range(each.head)
        line = f"{name:{width}}{base:>22}{head:>22}{each.quotient:>10.2f}{each.spread:>8.2f}  {each.change}"
        yield line.rstrip()


def _rows_with_floor(report: RunReport) -> dict[tuple[str, str], Row]:
    return {(report.subject, row.label): row for row in report.rows if row.ratio is not None}


def _ratios(runs: Sequence[dict[tuple[str, str], Row]], key: tuple[str, str]) -> tuple[float, ...]:
    return tuple(ratio for rows in runs if key in rows and (ratio := rows[key].ratio) is not None)


def _divide(dividend: float, divisor: float) -> float:
    """Divide ratios. A ratio can be zero, for example of a number of writes."""
    if divisor:
        return dividend / divisor
    return float("inf") if dividend else 1.0


def _range(ratios: Sequence[float]) -> str:
    return f"{median(ratios):.2f} ({min(ratios):.2f}-{max(ratios):.2f})"
