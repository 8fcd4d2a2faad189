"""Measures the time until a program answers, with and without stock: of a unit, of a function, and of a bare pod.

    python -m bench.stock [--rounds 20]

The whole platform runs on a real node. The clock starts with the HTTP request of the caller. For units without stock
and for bare pods it starts with the create request to the API server. All have the same image, reservation, template
and probes. The time of a function is the time of a synchronous invocation while the function has no worker. The ways
take turns.
"""

import argparse
import asyncio

from bench.report import BenchmarkResult, Row, TimelineChart, quantile, report_and_exit
from bench.stock_runs import Start, Way, measure_starts

ANSWER = "program answers"
CHART_STEPS = (
    "request answered",
    "unit created",
    "stock pod ended",
    "pod scheduled",
    "sidecar started",
    "container started",
    "endpoint ready",
    ANSWER,
)
LIMITS = {
    Way.PREPARED: (Way.NO_STOCK, 0.25, 0.5),
    Way.RESERVED: (Way.NO_STOCK, 1.15, None),
    Way.FULL_RESERVED: (Way.FULL_NO_STOCK, 1.6, None),
    Way.FUNCTION_RESERVED: (Way.FUNCTION_NO_STOCK, 1.15, None),
    Way.FULL_FUNCTION_RESERVED: (Way.FULL_FUNCTION_NO_STOCK, 1.6, None),
}
"""For each way from stock: the way without stock that it is compared with, and the largest ratios of p50 and p95."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rounds", type=int, default=20, help="number of starts of each way (default 20)")
    parser.add_argument("--ways", nargs="*", type=Way, default=list(Way), help="the ways to measure (default all)")
    args = parser.parse_args()
    report_and_exit("stock", lambda: measure(args.ways, args.rounds))


def measure(ways: list[Way], rounds: int) -> BenchmarkResult:
    starts = asyncio.run(measure_starts(ways, rounds))
    rows = [row for way in ways for row in rows_of(way, starts)]
    return BenchmarkResult(rows, [], starts, [timeline_of(ways, starts)])


def timeline_of(ways: list[Way], starts: list[Start]) -> TimelineChart:
    steps = {
        way.value: {
            step: 1000 * seconds
            for step in CHART_STEPS
            if (seconds := seconds_of(way, starts, step, 0.5)) <= seconds_of(way, starts, ANSWER, 0.5)
        }
        for way in ways
    }
    return TimelineChart("timeline", "median time from the request until the program answers", steps)


def rows_of(way: Way, starts: list[Start]) -> list[Row]:
    base, *limits = LIMITS.get(way, (None, None, None))
    rows = []
    for share, label, limit in ((0.5, "p50", limits[0]), (0.95, "p95", limits[1])):
        value = seconds_of(way, starts, ANSWER, share)
        floor = seconds_of(base, starts, ANSWER, share) if base else None
        missed = bool(limit and floor and value > limit * floor)
        rows.append(
            Row(
                f"{way}: {label}", 1000 * value, "ms", floor and 1000 * floor, f"ratio {limit}" if limit else "", missed
            )
        )
    steps = {step: None for start in starts if start.way is way for step in start.times}
    return rows + [
        Row(f"    {step}, p50", 1000 * seconds_of(way, starts, step, 0.5), "ms") for step in steps if step != ANSWER
    ]


def seconds_of(way: Way, starts: list[Start], step: str, share: float) -> float:
    return quantile(sorted(each.times[step] for each in starts if each.way is way and step in each.times), share)


if __name__ == "__main__":
    main()
