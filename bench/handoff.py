"""What a handoff costs: POST /gpu-units, beside floors that are measured in the same run.

    python -m bench.handoff [--units 360]

The runtime API, one replica and then two, is the real process under its own identity, against a real API server and
etcd. The creates come over HTTP from a process of its own, 45 per second at times that are fixed beforehand, and then
as many as come of 1, 4, 16 and 64 callers. The floor (`bench/floors/handoff_writes.py`): the same writes by another process
with aiohttp and msgspec and nothing between, at the same rate against the same API server.

What is promised is measured without controllers at work: stock is said to be Ready, and nobody makes the units Ready
meanwhile, since two cores cannot do that 45 times per second. For information the same comes once more, on another
control plane with simulated nodes, while the controller manager makes all of it Ready, beside a floor of its own.

Writes are counted by the API server, in two ways that must agree: by its metrics, of what only the runtime API writes,
and by its audit log, kept for the runtime API's user alone.
"""

import argparse
import asyncio

import msgspec

from bench.handoff_runs import CREATES_PER_SECOND, LoadMeasurement, LoadProfile, measure_profiles
from bench.report import BenchmarkResult, Chart, Row, quantile, report_and_exit

CONCURRENCY_LEVELS = (1, 4, 16, 64)
MAX_P50_SECONDS, MAX_P99_SECONDS, MAX_WRITES_PER_UNIT = 0.030, 0.150, 6
ONE_REPLICA_LABEL, TWO_REPLICAS_LABEL, WITH_CONTROLLERS_LABEL = (
    "no controllers, one replica",
    "no controllers, two replicas",
    "controllers at work",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--units", type=int, default=360, help="creates at the rate, on one replica without controllers"
    )
    units = parser.parse_args().units
    report_and_exit("handoff", lambda: asyncio.run(measure(units)))


async def measure(units: int) -> BenchmarkResult:
    burdens = await measure_profiles(load_profiles(units))
    found = {burden.profile.name: burden for burden in burdens}
    return BenchmarkResult(rows(found), charts(found), burdens)


def load_profiles(units: int) -> list[LoadProfile]:
    some, few = units // 2, units // 6
    return [
        LoadProfile("one-replica", units, replicas=1, rate=CREATES_PER_SECOND),
        LoadProfile("two-replicas", some, replicas=2, rate=CREATES_PER_SECOND),
        LoadProfile("floor", some, replicas=0, rate=CREATES_PER_SECOND),
        *(LoadProfile(f"api-{count}", few + 2 * count, replicas=1, concurrency=count) for count in CONCURRENCY_LEVELS),
        *(
            LoadProfile(f"floor-{count}", few + 2 * count, replicas=0, concurrency=count)
            for count in CONCURRENCY_LEVELS
        ),
        LoadProfile("one-controlled", few, replicas=1, rate=CREATES_PER_SECOND, with_controllers=True),
        LoadProfile("floor-controlled", few, replicas=0, rate=CREATES_PER_SECOND, with_controllers=True),
    ]


def rows(found: dict[str, LoadMeasurement]) -> list[Row]:
    return [
        *rate_rows(ONE_REPLICA_LABEL, found["one-replica"], found["floor"]),
        *rate_rows(TWO_REPLICAS_LABEL, found["two-replicas"], found["floor"]),
        *(row for count in CONCURRENCY_LEVELS for row in concurrency_rows(found, count)),
        *rate_rows(WITH_CONTROLLERS_LABEL, found["one-controlled"], found["floor-controlled"]),
    ]


def concurrency_rows(found: dict[str, LoadMeasurement], count: int) -> list[Row]:
    ours, floor = found[f"api-{count}"], found[f"floor-{count}"]
    return [
        Row(f"{count} at a time: creates per second", ours.creates_per_second, "", floor.creates_per_second),
        _milliseconds_row(f"{count} at a time: HTTP p50", ours.latency_quantile(0.5), floor.latency_quantile(0.5)),
        _milliseconds_row(f"{count} at a time: HTTP p99", ours.latency_quantile(0.99), floor.latency_quantile(0.99)),
    ]


def rate_rows(who: str, burden: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    latencies, counts = _latency_rows(who, burden, floor), _count_rows(who, burden, floor)
    if burden.profile.replicas > 1:  # on the same two cores, where another one is only more to do
        latencies = [*map(_without_target, latencies)]
    rows = [*latencies, *counts, *_cost_rows(who, burden, floor)]
    if not burden.profile.with_controllers:
        return rows
    pod, floor_pod = (quantile(each.pod_latency_seconds, 0.5) for each in (burden, floor))
    return [*map(_without_target, rows), Row(f"{who}: p50 until the pod exists", pod, "s", floor_pod)]


def _without_target(row: Row) -> Row:
    return msgspec.structs.replace(row, target="", missed=False)


def _latency_rows(who: str, burden: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    p50, p99 = burden.latency_quantile(0.5), burden.latency_quantile(0.99)
    return [
        Row(
            f"{who}: HTTP p50 at {CREATES_PER_SECOND}/s",
            1000 * p50,
            "ms",
            1000 * floor.latency_quantile(0.5),
            "30 ms",
            missed=p50 > MAX_P50_SECONDS,
        ),
        Row(
            f"{who}: HTTP p99 at {CREATES_PER_SECOND}/s",
            1000 * p99,
            "ms",
            1000 * floor.latency_quantile(0.99),
            "150 ms",
            missed=p99 > MAX_P99_SECONDS,
        ),
    ]


def _count_rows(who: str, burden: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    refused, written, listed = len(burden.errors), burden.writes_per_create, burden.list_requests
    return [
        Row(f"{who}: answers that are not 201", refused, "", 0, "0", missed=refused > 0),
        Row(f"{who}: writes per unit", written, "", floor.writes_per_create, "6", missed=written > MAX_WRITES_PER_UNIT),
        Row(f"{who}: lists for {burden.profile.stock_count} creates", listed, "", 0, "0", missed=listed > 0),
    ]


def _cost_rows(who: str, burden: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    return [
        Row(f"{who}: reads per create, by the sweep", burden.reads_per_create, "", 0),
        _milliseconds_row(f"{who}: CPU per create", burden.target_cpu_seconds, floor.target_cpu_seconds),
        _milliseconds_row(
            f"{who}: the API server's CPU per create", burden.api_server_cpu_seconds, floor.api_server_cpu_seconds
        ),
    ]


def _milliseconds_row(what: str, seconds: float, floor: float) -> Row:
    return Row(what, 1000 * seconds, "ms", 1000 * floor)


def charts(found: dict[str, LoadMeasurement]) -> list[Chart]:
    ours, floor = ([found[f"{who}-{count}"] for count in CONCURRENCY_LEVELS] for who in ("api", "floor"))
    who = {"runtime API": ours, "floor: its writes alone": floor}
    across = "creates at a time"
    rates = {name: [each.creates_per_second for each in burdens] for name, burdens in who.items()}
    p50 = {f"{name}, p50": [1000 * each.latency_quantile(0.5) for each in burdens] for name, burdens in who.items()}
    p99 = {f"{name}, p99": [1000 * each.latency_quantile(0.99) for each in burdens] for name, burdens in who.items()}
    return [
        Chart("throughput", "creates per second", across, list(CONCURRENCY_LEVELS), rates),
        Chart("latency", "time of a create, ms", across, list(CONCURRENCY_LEVELS), p50 | p99),
    ]


if __name__ == "__main__":
    main()
