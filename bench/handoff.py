"""Measures the cost of a handoff (POST /gpu-units) and compares it with floors that are measured in the same run.

    python -m bench.handoff [--units 360]

The runtime API, with one replica and then with two, is the real process with its own identity, against a real API
server and etcd. A separate process sends the creates over HTTP: first 45 per second at scheduled times, then with 1, 4,
16 and 64 concurrent callers. The floor
(`bench/floors/handoff_writes.py`) is another process that makes the same writes with plain aiohttp and msgspec, at the
same rate against the same API server.

The targets apply to runs without controllers. In these runs the benchmark itself sets the status of the stock to Ready,
and no controller makes the units Ready, because two cores cannot do that 45 times per second. For information, the
benchmark repeats the measurement on another control plane with simulated nodes, while the controller manager makes all
units Ready. This run has its own floor.

The API server counts the writes in two ways: with its metrics, for resources that only the runtime API
writes, and with its audit log, which contains only the requests of the runtime API's user.
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
    "with controllers",
)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--units",
        type=int,
        default=360,
        help="number of creates at the fixed rate, for one replica without controllers (default 360)",
    )
    units = parser.parse_args().units
    report_and_exit("handoff", lambda: asyncio.run(measure(units)))


async def measure(units: int) -> BenchmarkResult:
    measurements = await measure_profiles(load_profiles(units))
    by_profile = {measurement.profile.name: measurement for measurement in measurements}
    return BenchmarkResult(rows(by_profile), charts(by_profile), measurements)


def load_profiles(units: int) -> list[LoadProfile]:
    half, sixth = units // 2, units // 6
    return [
        LoadProfile("one-replica", units, replicas=1, rate=CREATES_PER_SECOND),
        LoadProfile("two-replicas", half, replicas=2, rate=CREATES_PER_SECOND),
        LoadProfile("floor", half, replicas=0, rate=CREATES_PER_SECOND),
        *(
            LoadProfile(f"api-{count}", sixth + 2 * count, replicas=1, concurrency=count)
            for count in CONCURRENCY_LEVELS
        ),
        *(
            LoadProfile(f"floor-{count}", sixth + 2 * count, replicas=0, concurrency=count)
            for count in CONCURRENCY_LEVELS
        ),
        LoadProfile("one-controlled", sixth, replicas=1, rate=CREATES_PER_SECOND, with_controllers=True),
        LoadProfile("floor-controlled", sixth, replicas=0, rate=CREATES_PER_SECOND, with_controllers=True),
    ]


def rows(by_profile: dict[str, LoadMeasurement]) -> list[Row]:
    return [
        *rate_rows(ONE_REPLICA_LABEL, by_profile["one-replica"], by_profile["floor"]),
        *rate_rows(TWO_REPLICAS_LABEL, by_profile["two-replicas"], by_profile["floor"]),
        *(row for count in CONCURRENCY_LEVELS for row in concurrency_rows(by_profile, count)),
        *rate_rows(WITH_CONTROLLERS_LABEL, by_profile["one-controlled"], by_profile["floor-controlled"]),
    ]


def concurrency_rows(by_profile: dict[str, LoadMeasurement], count: int) -> list[Row]:
    api, floor = by_profile[f"api-{count}"], by_profile[f"floor-{count}"]
    return [
        Row(f"{count} concurrent: creates per second", api.creates_per_second, "", floor.creates_per_second),
        _milliseconds_row(f"{count} concurrent: HTTP p50", api.latency_quantile(0.5), floor.latency_quantile(0.5)),
        _milliseconds_row(f"{count} concurrent: HTTP p99", api.latency_quantile(0.99), floor.latency_quantile(0.99)),
    ]


def rate_rows(label: str, measurement: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    latencies, counts = _latency_rows(label, measurement, floor), _count_rows(label, measurement, floor)
    if measurement.profile.replicas > 1:  # both replicas share the same cores, so the second one adds only overhead
        latencies = [*map(_without_target, latencies)]
    rows = [*latencies, *counts, *_cost_rows(label, measurement, floor)]
    if not measurement.profile.with_controllers:
        return rows
    pod, floor_pod = (quantile(each.pod_latency_seconds, 0.5) for each in (measurement, floor))
    return [*map(_without_target, rows), Row(f"{label}: p50 until the pod exists", pod, "s", floor_pod)]


def _without_target(row: Row) -> Row:
    return msgspec.structs.replace(row, target="", missed=False)


def _latency_rows(label: str, measurement: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    p50, p99 = measurement.latency_quantile(0.5), measurement.latency_quantile(0.99)
    return [
        Row(
            f"{label}: HTTP p50 at {CREATES_PER_SECOND}/s",
            1000 * p50,
            "ms",
            1000 * floor.latency_quantile(0.5),
            "30 ms",
            missed=p50 > MAX_P50_SECONDS,
        ),
        Row(
            f"{label}: HTTP p99 at {CREATES_PER_SECOND}/s",
            1000 * p99,
            "ms",
            1000 * floor.latency_quantile(0.99),
            "150 ms",
            missed=p99 > MAX_P99_SECONDS,
        ),
    ]


def _count_rows(label: str, measurement: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    errors, writes, lists = len(measurement.errors), measurement.writes_per_create, measurement.list_requests
    return [
        Row(f"{label}: responses other than 201", errors, "", 0, "0", missed=errors > 0),
        Row(f"{label}: writes per unit", writes, "", floor.writes_per_create, "6", missed=writes > MAX_WRITES_PER_UNIT),
        Row(f"{label}: lists for {measurement.profile.all_creates} creates", lists, "", 0, "0", missed=lists > 0),
    ]


def _cost_rows(label: str, measurement: LoadMeasurement, floor: LoadMeasurement) -> list[Row]:
    return [
        Row(f"{label}: reads per create, from the recovery sweep", measurement.reads_per_create, "", 0),
        _milliseconds_row(f"{label}: CPU per create", measurement.target_cpu_seconds, floor.target_cpu_seconds),
        _milliseconds_row(
            f"{label}: the API server's CPU per create",
            measurement.api_server_cpu_seconds,
            floor.api_server_cpu_seconds,
        ),
    ]


def _milliseconds_row(label: str, seconds: float, floor: float) -> Row:
    return Row(label, 1000 * seconds, "ms", 1000 * floor)


def charts(by_profile: dict[str, LoadMeasurement]) -> list[Chart]:
    api, floor = ([by_profile[f"{kind}-{count}"] for count in CONCURRENCY_LEVELS] for kind in ("api", "floor"))
    lines = {"runtime API": api, "floor: its writes alone": floor}
    x_label = "concurrent creates"
    rates = {name: [each.creates_per_second for each in measurements] for name, measurements in lines.items()}
    p50 = {
        f"{name}, p50": [1000 * each.latency_quantile(0.5) for each in measurements]
        for name, measurements in lines.items()
    }
    p99 = {
        f"{name}, p99": [1000 * each.latency_quantile(0.99) for each in measurements]
        for name, measurements in lines.items()
    }
    return [
        Chart("throughput", "creates per second", x_label, list(CONCURRENCY_LEVELS), rates),
        Chart("latency", "time of a create, ms", x_label, list(CONCURRENCY_LEVELS), p50 | p99),
    ]


if __name__ == "__main__":
    main()
