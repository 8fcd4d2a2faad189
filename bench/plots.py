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

from bench.report import Chart, reports

WIDTH, HEIGHT = 640, 360
LEFT, RIGHT, TOP, BOTTOM = 70, 20, 50, 50
COLOURS, GREYS = ("#1b6ac9", "#d9761a"), ("#8a8a8a", "#4d4d4d")
"""Of figures, and of floors."""
STYLE = "font-family='sans-serif' font-size='12' fill='#222'"
FLOOR = "floor"
"""What the name of a floor's line begins with."""
ROW = 16
"""Height of a line in the legend."""


@dataclass(frozen=True)
class Axis:
    """From values to places, logarithmically."""

    least: float
    most: float
    start: float
    end: float

    def at(self, value: float) -> float:
        share = math.log(value / self.least) / math.log(self.most / self.least)
        return self.start + share * (self.end - self.start)


def main() -> None:
    folder = Path(sys.argv[1])
    for report in reports():
        for chart in report.charts:
            path = folder / f"{report.subject}-{chart.name}.svg"
            path.write_text(svg(chart))
            print(path)


def svg(chart: Chart) -> str:
    values = [value for line in chart.lines.values() for value in line] + ([chart.limit] if chart.limit else [])
    least, most = bounds(values)
    height = HEIGHT + ROW * len(chart.lines)
    across = Axis(chart.points[0], max(chart.points[-1], 2 * chart.points[0]), LEFT + 20, WIDTH - RIGHT - 20)
    up = Axis(least, most, HEIGHT - BOTTOM, TOP)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        _text(LEFT, 24, chart.title, "start", "font-weight='bold'"),
        *_grid(chart, across, up),
        *(part for number, name in enumerate(chart.lines) for part in _line(chart, number, name, across, up)),
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


def _grid(chart: Chart, across: Axis, up: Axis) -> Iterator[str]:
    for mark in ticks(up.least, up.most):
        y = up.at(mark)
        yield f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#ddd'/>"
        yield _text(LEFT - 8, y + 4, f"{mark:,g}", "end")
    for point in chart.points:
        x = across.at(point)
        yield f"<path d='M{x:.1f} {TOP}V{HEIGHT - BOTTOM}' stroke='#eee'/>"
        yield _text(x, HEIGHT - BOTTOM + 18, f"{point:,}", "middle")
    yield _text((LEFT + WIDTH - RIGHT) / 2, HEIGHT - BOTTOM + 38, chart.across, "middle")
    if chart.limit:
        y = up.at(chart.limit)
        yield f"<path d='M{LEFT} {y:.1f}H{WIDTH - RIGHT}' stroke='#c0392b' stroke-dasharray='6 4'/>"
        yield _text(WIDTH - RIGHT, y - 5, f"target {_figure(chart.limit)}", "end", "fill='#c0392b'")


def _line(chart: Chart, number: int, name: str, across: Axis, up: Axis) -> Iterator[str]:
    colour, dashes = _colour(chart, name), " stroke-dasharray='3 3'" if name.startswith(FLOOR) else ""
    places = [(across.at(x), up.at(y)) for x, y in zip(chart.points, chart.lines[name], strict=True)]
    for (x, y), (next_x, next_y) in pairwise(places):
        yield f"<path d='M{x:.1f} {y:.1f}L{next_x:.1f} {next_y:.1f}' stroke='{colour}' stroke-width='2'{dashes}/>"
    for (x, y), value in zip(places, chart.lines[name], strict=True):
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{colour}'><title>{_figure(value)}</title></circle>"
    legend = HEIGHT + ROW * number
    yield f"<path d='M{LEFT} {legend}h28' stroke='{colour}' stroke-width='2'{dashes}/>"
    figures = ", ".join(_figure(value) for value in chart.lines[name])
    yield _text(LEFT + 36, legend + 4, f"{name}: {figures}", "start")


def _colour(chart: Chart, name: str) -> str:
    is_floor = name.startswith(FLOOR)
    alike = [each for each in chart.lines if each.startswith(FLOOR) is is_floor]
    colours = GREYS if is_floor else COLOURS
    return colours[alike.index(name) % len(colours)]


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, words: str, anchor: str, more: str = "") -> str:
    style = STYLE.replace("fill='#222'", "") if "fill" in more else STYLE
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style} {more}>{escape(words)}</text>"


if __name__ == "__main__":
    main()
