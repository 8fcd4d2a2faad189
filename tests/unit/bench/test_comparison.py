"""Comparison of the ratios of two revisions."""

import msgspec
import pytest

from bench.compare import BENCHMARKS, CompareOptions, parse_arguments
from bench.comparison import (
    MIN_SPREAD,
    RatioComparison,
    RunReport,
    compare_runs,
    comparison_table,
    is_rate,
    missing_rows,
)
from bench.report import Row


def runs(label: str, values: list[float], floors: list[float], subject: str = "s", target: str = "") -> list[RunReport]:
    return [
        RunReport(subject, [Row(label, value, "ms", floor, target)])
        for value, floor in zip(values, floors, strict=True)
    ]


@pytest.mark.parametrize(
    ("base", "head", "change"),
    [
        ((1.0, 1.1, 1.2), (1.0, 1.1, 1.2), ""),
        ((1.0, 1.1, 1.2), (1.2, 1.31, 1.4), ""),
        ((1.0, 1.1, 1.2), (1.3, 1.4, 1.5), "WORSE"),
        ((1.3, 1.4, 1.5), (1.0, 1.1, 1.2), "better"),
        ((1.0, 1.0, 1.0), (1.019, 1.019, 1.019), ""),
        ((1.0, 1.0, 1.0), (1.25, 1.25, 1.25), "WORSE"),
        ((1.0, 1.0, 9.0), (2.0, 2.0, 2.0), ""),
        ((0.0, 0.0), (0.0, 0.0), ""),
        ((0.0, 0.0), (1.0, 1.0), "WORSE"),
        ((1.0, 1.0), (0.0, 0.0), "better"),
    ],
)
def test_ratio_is_worse_if_its_median_differs_by_more_than_the_spread(
    base: tuple[float, ...], head: tuple[float, ...], change: str
) -> None:
    assert RatioComparison("s", "cost", base, head).change == change


def test_lower_rate_is_worse() -> None:
    base, head = (0.5, 0.5), (0.25, 0.25)
    assert RatioComparison("s", "calls per second", base, head, is_rate=True).change == "WORSE"
    assert RatioComparison("s", "calls per second", head, base, is_rate=True).change == "better"
    assert RatioComparison("s", "calls per second", base, base, is_rate=True).change == ""


def test_rate_is_recognized_by_its_label_or_target() -> None:
    assert is_rate(Row("creates per second", 1))
    assert is_rate(Row("throughput", 1, target=">= 500"))
    assert not is_rate(Row("p50", 1, target="30 ms"))


def test_load_on_the_machine_that_slows_down_figure_and_floor_changes_no_ratio() -> None:
    (compared,) = compare_runs(runs("p50", [10, 20], [5, 10]), runs("p50", [11, 44], [5, 20]))
    assert compared.base == (2, 2)
    assert compared.head == (2.2, 2.2)
    assert compared.quotient == pytest.approx(1.1)
    assert (compared.spread, compared.change) == (MIN_SPREAD, "WORSE")


def test_rows_are_compared_by_benchmark_and_label() -> None:
    base = [*runs("p50", [1, 1], [1, 1], "a"), *runs("p50", [3, 3], [1, 1], "b"), *runs("old", [1], [1], "a")]
    head = [*runs("p50", [2, 2], [1, 1], "a"), *runs("p50", [3, 3], [1, 1], "b"), *runs("new", [1], [1], "a")]
    assert [(each.subject, each.label, each.quotient) for each in compare_runs(base, head)] == [
        ("a", "p50", 2),
        ("b", "p50", 1),
    ]
    assert missing_rows(base, head) == ["a: new", "a: old"]


def test_row_without_a_floor_is_not_compared() -> None:
    report = RunReport("s", [Row("batch", 3), Row("errors", 0, floor=0)])
    assert compare_runs([report], [report]) == []


def test_table_has_ratios_quotient_and_change() -> None:
    lines = list(comparison_table([RatioComparison("s", "p50", (1.0, 1.1), (2.0, 2.2))]))
    assert lines[1].split() == ["s:", "p50", "1.05", "(1.00-1.10)", "2.10", "(2.00-2.20)", "2.00", "1.10", "WORSE"]


def test_report_of_another_revision_may_have_other_fields() -> None:
    text = b'{"subject": "s", "machine": {}, "rows": [{"label": "p50", "value": 2, "floor": 1, "colour": "red"}]}'
    report = msgspec.json.decode(text, type=RunReport)
    assert [row.ratio for row in report.rows] == [2]


@pytest.mark.parametrize(
    ("arguments", "options"),
    [
        (["main"], CompareOptions("main", 5, BENCHMARKS, ())),
        (["main", "--rounds=3", "results", "handoff"], CompareOptions("main", 3, ("results", "handoff"), ())),
        (["main", "invoke", "--", "--calls", "5"], CompareOptions("main", 5, ("invoke",), ("--calls", "5"))),
    ],
)
def test_arguments_select_revision_rounds_and_benchmarks(arguments: list[str], options: CompareOptions) -> None:
    assert parse_arguments(arguments) == options


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["main", "--rounds=2"], "at least 3 rounds"),
        (["main", "disk"], "disk: use controller, handoff, invoke, results"),
        (["main", "--", "--calls", "5"], "exactly one benchmark"),
        ([], "base"),
    ],
)
def test_wrong_arguments_are_rejected(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        parse_arguments(arguments)
    assert message in capsys.readouterr().err
