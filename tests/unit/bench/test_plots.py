"""Rendering of charts as SVG, and printing of result tables."""

from xml.etree import ElementTree

import pytest

from bench.plots import LogAxis, bounds, render_svg, ticks
from bench.report import Chart, Row, print_table

CHART = Chart(
    "cpu", "CPU per unit, ms", "units < 5,000", [100, 1000, 5000], {"ours": [9, 8, 8.5], "floor": [3, 3, 4]}, 12
)


def test_svg_has_a_point_per_value_and_escapes_text() -> None:
    svg = ElementTree.fromstring(render_svg(CHART))  # noqa: S314 - trusted input
    texts = [each.text for each in svg.iter("{http://www.w3.org/2000/svg}text")]
    assert len(list(svg.iter("{http://www.w3.org/2000/svg}circle"))) == 6
    assert "units < 5,000" in texts
    assert "target 12" in texts


def test_axis_is_logarithmic() -> None:
    axis = LogAxis(1, 10_000, 0, 400)
    assert [axis.position(value) for value in (1, 10, 100, 10_000)] == pytest.approx([0, 100, 200, 400])


@pytest.mark.parametrize(("values", "limits"), [([3, 8], (2, 10)), ([9.5, 120], (5, 200)), ([0.3], (0.2, 0.5))])
def test_axis_limits_are_round_and_include_all_values(values: list[float], limits: tuple[float, float]) -> None:
    assert bounds(values) == pytest.approx(limits)
    assert ticks(*bounds(values))[0] == pytest.approx(limits[0])
    assert ticks(*bounds(values))[-1] == pytest.approx(limits[1])


def test_table_marks_met_and_missed_targets(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([Row("writes", 4.03, "", 5, "6"), Row("p50", 31, "ms", 20, "30 ms", missed=True), Row("reads", 100)])
    _, writes, p50, reads = capsys.readouterr().out.splitlines()
    assert writes.split() == ["writes", "4.03", "5", "0.81", "6", "holds"]
    assert p50.split() == ["p50", "31", "ms", "20", "ms", "1.55", "30", "ms", "MISSED"]
    assert reads.split() == ["reads", "100"]
