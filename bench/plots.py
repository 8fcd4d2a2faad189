"""Draws the charts of the latest benchmark reports as SVG files.

    python -m bench.plots FOLDER

There is one file for each chart of each report. Both axes of a line chart are logarithmic: a constant value is a
horizontal line, and linear growth is a line with the same slope everywhere.
"""

import math
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from bench.report import Chart, TimelineChart, load_reports

WIDTH, HEIGHT = 640, 360
MARGIN_LEFT, MARGIN_RIGHT, MARGIN_TOP, MARGIN_BOTTOM = 70, 20, 50, 50
LINE_COLORS, FLOOR_COLORS = ("#1b6ac9", "#d9761a"), ("#8a8a8a", "#4d4d4d")
"""The colors of the lines of measured values, and of the lines of floors."""
TEXT_STYLE = "font-family='sans-serif' font-size='12' fill='#222'"
FLOOR_PREFIX = "floor"
"""The prefix in the name of a line that shows a floor."""
LEGEND_ROW_HEIGHT = 16
BAR_ROW_HEIGHT = 42
STEP_COLORS = ("#8a8a8a", "#b8cfe8", "#1b6ac9", "#7a3e9d", "#d9761a", "#2e8b57", "#c0392b", "#d4b106")
"""The colors of the steps of a timeline."""


@dataclass(frozen=True)
class LogAxis:
    """Maps values to positions on a logarithmic axis."""

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
        drawn = {chart.name: render_svg(chart) for chart in report.charts}
        drawn |= {chart.name: render_timeline(chart) for chart in report.timelines}
        for name, svg in drawn.items():
            path = folder / f"{report.subject}-{name}.svg"
            path.write_text(svg)
            print(path)


def render_svg(chart: Chart) -> str:
    values = [value for line in chart.series.values() for value in line] + ([chart.target] if chart.target else [])
    minimum, maximum = bounds(values)
    height = HEIGHT + LEGEND_ROW_HEIGHT * len(chart.series)
    x_axis = LogAxis(
        chart.x_values[0], max(chart.x_values[-1], 2 * chart.x_values[0]), MARGIN_LEFT + 20, WIDTH - MARGIN_RIGHT - 20
    )
    y_axis = LogAxis(minimum, maximum, HEIGHT - MARGIN_BOTTOM, MARGIN_TOP)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        _text(MARGIN_LEFT, 24, chart.title, "start", "font-weight='bold'"),
        *_grid(chart, x_axis, y_axis),
        *(part for number, name in enumerate(chart.series) for part in _line(chart, number, name, x_axis, y_axis)),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def render_timeline(chart: TimelineChart) -> str:
    """Draw a bar for each way. The colors of its parts show the steps, and the axis starts at 0."""
    names = list(dict.fromkeys(step for steps in chart.steps.values() for step in steps))
    colors = {name: STEP_COLORS[index % len(STEP_COLORS)] for index, name in enumerate(names)}
    longest = max(max(steps.values()) for steps in chart.steps.values())
    scale = (WIDTH - 2 * MARGIN_RIGHT) / longest
    bottom = MARGIN_TOP + BAR_ROW_HEIGHT * len(chart.steps)
    height = bottom + LEGEND_ROW_HEIGHT * (len(names) + 1)
    parts = [
        f"<svg xmlns='http://www.w3.org/2000/svg' width='{WIDTH}' height='{height}' viewBox='0 0 {WIDTH} {height}'>",
        f"<rect width='{WIDTH}' height='{height}' fill='white'/>",
        _text(MARGIN_RIGHT, 24, chart.title, "start", "font-weight='bold'"),
    ]
    for row, (label, steps) in enumerate(chart.steps.items()):
        y, start = MARGIN_TOP + BAR_ROW_HEIGHT * row, 0.0
        parts.append(_text(MARGIN_RIGHT, y + 12, f"{label}: {_format_number(max(steps.values()))} ms", "start"))
        for step, end in sorted(steps.items(), key=lambda item: item[1]):
            x, width = MARGIN_RIGHT + scale * start, scale * (end - start)
            title = f"<title>{escape(step)}: {_format_number(end)} ms</title>"
            parts.append(
                f"<rect x='{x:.1f}' y='{y + 17}' width='{width:.1f}' height='14' fill='{colors[step]}'>{title}</rect>"
            )
            start = end
    for row, name in enumerate(names):
        y = bottom + LEGEND_ROW_HEIGHT * (row + 1)
        parts.append(f"<rect x='{MARGIN_RIGHT}' y='{y - 10}' width='12' height='12' fill='{colors[name]}'/>")
        parts.append(_text(MARGIN_RIGHT + 20, y, f"until: {name}", "start"))
    return "\n".join([*parts, "</svg>"]) + "\n"


def bounds(values: Sequence[float]) -> tuple[float, float]:
    """Return the nearest limits of the form 1, 2 or 5 times a power of ten that enclose all values."""
    marks = [factor * 10.0**power for power in range(-4, 8) for factor in (1, 2, 5)]
    minimum = max(mark for mark in marks if mark < min(values))
    return minimum, min(mark for mark in marks if mark > max(values))


def ticks(minimum: float, maximum: float) -> list[float]:
    marks = [factor * 10.0**power for power in range(-4, 8) for factor in (1, 2, 5)]
    return [mark for mark in marks if minimum <= mark * 1.0001 and mark <= maximum * 1.0001]


def _grid(chart: Chart, x_axis: LogAxis, y_axis: LogAxis) -> Iterator[str]:
    for mark in ticks(y_axis.minimum, y_axis.maximum):
        y = y_axis.position(mark)
        yield f"<path d='M{MARGIN_LEFT} {y:.1f}H{WIDTH - MARGIN_RIGHT}' stroke='#ddd'/>"
        yield _text(MARGIN_LEFT - 8, y + 4, f"{mark:,g}", "end")
    for point in chart.x_values:
        x = x_axis.position(point)
        yield f"<path d='M{x:.1f} {MARGIN_TOP}V{HEIGHT - MARGIN_BOTTOM}' stroke='#eee'/>"
        yield _text(x, HEIGHT - MARGIN_BOTTOM + 18, f"{point:,}", "middle")
    yield _text((MARGIN_LEFT + WIDTH - MARGIN_RIGHT) / 2, HEIGHT - MARGIN_BOTTOM + 38, chart.x_label, "middle")
    if chart.target:
        y = y_axis.position(chart.target)
        yield f"<path d='M{MARGIN_LEFT} {y:.1f}H{WIDTH - MARGIN_RIGHT}' stroke='#c0392b' stroke-dasharray='6 4'/>"
        yield _text(WIDTH - MARGIN_RIGHT, y - 5, f"target {_format_number(chart.target)}", "end", "fill='#c0392b'")


def _line(chart: Chart, number: int, name: str, x_axis: LogAxis, y_axis: LogAxis) -> Iterator[str]:
    color, dashes = _line_color(chart, name), " stroke-dasharray='3 3'" if name.startswith(FLOOR_PREFIX) else ""
    points = [(x_axis.position(x), y_axis.position(y)) for x, y in zip(chart.x_values, chart.series[name], strict=True)]
    for (x, y), (next_x, next_y) in pairwise(points):
        yield f"<path d='M{x:.1f} {y:.1f}L{next_x:.1f} {next_y:.1f}' stroke='{color}' stroke-width='2'{dashes}/>"
    for (x, y), value in zip(points, chart.series[name], strict=True):
        title = f"<title>{_format_number(value)}</title>"
        yield f"<circle cx='{x:.1f}' cy='{y:.1f}' r='3.5' fill='{color}'>{title}</circle>"
    legend = HEIGHT + LEGEND_ROW_HEIGHT * number
    yield f"<path d='M{MARGIN_LEFT} {legend}h28' stroke='{color}' stroke-width='2'{dashes}/>"
    values = ", ".join(_format_number(value) for value in chart.series[name])
    yield _text(MARGIN_LEFT + 36, legend + 4, f"{name}: {values}", "start")


def _line_color(chart: Chart, name: str) -> str:
    is_floor = name.startswith(FLOOR_PREFIX)
    same_kind = [each for each in chart.series if each.startswith(FLOOR_PREFIX) is is_floor]
    colors = FLOOR_COLORS if is_floor else LINE_COLORS
    return colors[same_kind.index(name) % len(colors)]


def _format_number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _text(x: float, y: float, text: str, anchor: str, attributes: str = "") -> str:
    style = TEXT_STYLE.replace("fill='#222'", "") if "fill" in attributes else TEXT_STYLE
    return f"<text x='{x:.1f}' y='{y:.1f}' text-anchor='{anchor}' {style} {attributes}>{escape(text)}</text>"


if __name__ == "__main__":
    main()
