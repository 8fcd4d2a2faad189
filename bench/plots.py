"""Plots of what the last runs found, as SVG.

    python -m bench.plots FOLDER

One file for each chart of each report. Both axes are logarithmic: what does not grow is level, and what grows as its
points do rises by the same angle everywhere.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from bench.report import Chart, load_reports

WIDTH, HEIGHT = 640, 360
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 70, 20, 50, 50
LINE_COLORS, FLOOR_COLORS = ("#1b6ac9", "#d9761a"), ("#8a8a8a", "#4d4d4d")
"""Of figures, and of floors."""
TEXT_STYLE = "font-family='sans-serif' font-size='12' fill='#222'"
FLOOR_PREFIX = "floor"
"""What the name of a floor's line begins with."""
LEGEND_ROW_HEIGHT = 16
"""Height of a line in the legend."""


@dataclass(frozen=True)
class LogAxis:
    """From values to places, logarithmically."""

    minimum: float
    maximum: float
    start: float
    end: float

    def position(self, value: float) -> float:
        share = math.log(value / self.minimum) / math.log(self.maximum / self.minimum)
        return self.start + share * (self.end - self.start)


def main() -> None:
    folder = Path(sys.argv[1])
    for report in load_reports():
        for chart in report.charts:
            path = folder / f"{report.subject}-{chart.name}.svg"
            path.write_text(render_svg(chart))
            print(path)


def render_svg(chart: Chart) -> str:
    values = [value for line in chart.series.values() for value in line] + ([chart.target] if chart.target else [])
    least, most = bounds(values)
    height = HEIGHT + LEGEND_ROW_HEIGHT * len(chart.series)
    across = LogAxis(
        chart.x_values[0], max(chart.x_values[-1], 2 * chart.x_values[0]), MARGIN_LEFT + 20, WIDTH - MARGIN_RIGHT - 20
    )
    up = LogAxis(least, most, HEIGHT - MARGIN_BOTTOM, MARGIN_TOP)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        _text(MARGIN_LEFT, 24, chart.title, "start", "font-weight='bold'"),
        *_grid(chart, across, up),
        *(part for number, name in enumerate(chart.series) for part in _line(chart, number, name, across, up)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """The nearest of 1, 2 and 5 times a power of ten that enclose all values."""
    marks = [factor * 10.0**power for power in range(-4, 8) for factor in (1, 2, 5)]
    least = max(mark for mark in marks if mark < min(values))
    return least, min(mark for mark in marks if mark > max(values))


def ticks(least: float, most: float) -> list[float]:
    marks = [factor * 10.0**power for power in range(-4, 8) for factor in (1, 2, 5)]
    return [mark for mark in marks if least <= mark * 1.0001 and mark <= most * 1.0001]


def _grid(chart: Chart, across: LogAxis, up: LogAxis) -> Iterator[str]:
    for mark in ticks(up.minimum, up.maximum):
        y = up.position(mark)
        yield f"<path d='M{MARGIN_LEFT} {y:.1f}H{WIDTH - MARGIN_RIGHT}' stroke='#ddd'/>"
        yield _text(MARGIN_LEFT - 8, y + 4, f"{mark:,g}", "end")
    for point in chart.x_values:
        x = across.position(point)
        yield f"<path d='M{x:.1f} {MARGIN_TOP}V{HEIGHT - MARGIN_BOTTOM}' stroke='#eee'/>"
        yield _text(x, HEIGHT - MARGIN_BOTTOM + 18, f"{point:,}", "middle")
    yield _text((MARGIN_LEFT + WIDTH - MARGIN_RIGHT) / 2, HEIGHT - MARGIN_BOTTOM + 38, chart.x_label, "middle")
    if chart.target:
        y = up.position(chart.target)
        yield f"<path d='M{MARGIN_LEFT} {y:.1f}H{WIDTH - MARGIN_RIGHT}' stroke='#c0392b' stroke-dasharray='6 4'/>"
        yield _text(WIDTH - MARGIN_RIGHT, y - 5, f"target {_format_number(chart.target)}", "end", "fill='#c0392b'")


def _line(chart: Chart, number: int, name: str, across: LogAxis, up: LogAxis) -> Iterator[str]:
    colour, dashes = _line_color(chart, name), " stroke-dasharray='3 3'" if name.startswith(FLOOR_PREFIX) else ""
    places = [(across.position(x), up.position(y)) for x, y in zip(chart.x_values, chart.series[name], strict=True)]
    for (x, y), (next_x, next_y) in pairwise(places):
        yield f"<path d='M{x:.1f} {y:.1f}L{next_x:.1f} {next_y:.1f}' stroke='{colour}' stroke-width='2'{dashes}/>"
    for (x, y), value in zip(places, chart.series[name], strict=True):
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'><title>{_format_number(value)}</title></circle>"
    legend = HEIGHT + LEGEND_ROW_HEIGHT * number
    yield f"<path d='M{MARGIN_LEFT} {legend}h28' stroke='{colour}' stroke-width='2'{dashes}/>"
    figures = ", ".join(_format_number(value) for value in chart.series[name])
    yield _text(MARGIN_LEFT + 36, legend + 4, f"{name}: {figures}", "start")


def _line_color(chart: Chart, name: str) -> str:
    is_floor = name.startswith(FLOOR_PREFIX)
    alike = [each for each in chart.series if each.startswith(FLOOR_PREFIX) is is_floor]
    colours = FLOOR_COLORS if is_floor else LINE_COLORS
    return colours[alike.index(name) % len(colours)]


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    style = TEXT_STYLE.replace("fill='#222'", "") if "fill" in more else TEXT_STYLE
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style} {more}>{escape(words)}</text>"


if __name__ == "__main__":
    main()
