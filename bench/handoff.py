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

from bench.handoff_runs import RATE, Burden, Load, observe
from bench.report import Chart, Findings, Row, present, quantile

CALLERS = (1, 4, 16, 64)
P50, P99, WRITES = 0.030, 0.150, 6
ALONE, TWO, CONTROLLED = "no controllers, one replica", "no controllers, two replicas", "controllers at work"


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--units", type=int, default=360, help="creates at the rate, on one replica without controllers"
    )
    units = parser.parse_args().units
    present("handoff", lambda: asyncio.run(measure(units)))


async def measure(units: int) -> Findings:
    burdens = await observe(loads(units))
    found = {burden.load.name: burden for burden in burdens}
    return Findings(rows(found), charts(found), burdens)


def loads(units: int) -> list[Load]:
    some, few = units // 2, units // 6
    return [
        Load("one-replica", units, replicas=1, rate=RATE),
        Load("two-replicas", some, replicas=2, rate=RATE),
        Load("floor", some, replicas=0, rate=RATE),
        *(Load(f"api-{count}", few + 2 * count, replicas=1, at_a_time=count) for count in CALLERS),
        *(Load(f"floor-{count}", few + 2 * count, replicas=0, at_a_time=count) for count in CALLERS),
        Load("one-controlled", few, replicas=1, rate=RATE, controlled=True),
        Load("floor-controlled", few, replicas=0, rate=RATE, controlled=True),
    ]


def rows(found: dict[str, Burden]) -> list[Row]:
    return [
        *rate_rows(ALONE, found["one-replica"], found["floor"]),
        *rate_rows(TWO, found["two-replicas"], found["floor"]),
        *(row for count in CALLERS for row in caller_rows(found, count)),
        *rate_rows(CONTROLLED, found["one-controlled"], found["floor-controlled"]),
    ]


def caller_rows(found: dict[str, Burden], count: int) -> list[Row]:
    ours, floor = found[f"api-{count}"], found[f"floor-{count}"]
    return [
        Row(f"{count} at a time: creates per second", ours.per_second, "", floor.per_second),
        _milliseconds_row(f"{count} at a time: HTTP p50", ours.latency(0.5), floor.latency(0.5)),
        _milliseconds_row(f"{count} at a time: HTTP p99", ours.latency(0.99), floor.latency(0.99)),
    ]


def rate_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    latencies, counts = _latency_rows(who, burden, floor), _count_rows(who, burden, floor)
    if burden.load.replicas > 1:  # on the same two cores, where another one is only more to do
        latencies = [*map(_for_information, latencies)]
    rows = [*latencies, *counts, *_cost_rows(who, burden, floor)]
    if not burden.load.controlled:
        return rows
    pod, floor_pod = (quantile(each.until_pod, 0.5) for each in (burden, floor))
    return [*map(_for_information, rows), Row(f"{who}: p50 until the pod exists", pod, "s", floor_pod)]


def _for_information(row: Row) -> Row:
    return msgspec.structs.replace(row, target="", missed=False)


def _latency_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    p50, p99 = burden.latency(0.5), burden.latency(0.99)
    return [
        Row(f"{who}: HTTP p50 at {RATE}/s", 1000 * p50, "ms", 1000 * floor.latency(0.5), "30 ms", missed=p50 > P50),
        Row(f"{who}: HTTP p99 at {RATE}/s", 1000 * p99, "ms", 1000 * floor.latency(0.99), "150 ms", missed=p99 > P99),
    ]


def _count_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    refused, written, listed = len(burden.refusals), burden.writes_per_create, burden.lists
    return [
        Row(f"{who}: answers that are not 201", refused, "", 0, "0", missed=refused > 0),
        Row(f"{who}: writes per unit", written, "", floor.writes_per_create, "6", missed=written > WRITES),
        Row(f"{who}: lists for {burden.load.stock} creates", listed, "", 0, "0", missed=listed > 0),
    ]


def _cost_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    return [
        Row(f"{who}: reads per create, by the sweep", burden.reads_per_create, "", 0),
        _milliseconds_row(f"{who}: CPU per create", burden.cpu_of_contender, floor.cpu_of_contender),
        _milliseconds_row(f"{who}: the API server's CPU per create", burden.cpu_of_api_server, floor.cpu_of_api_server),
    ]


def _milliseconds_row(what: str, seconds: float, floor: float) -> Row:
    return Row(what, 1000 * seconds, "ms", 1000 * floor)


def charts(found: dict[str, Burden]) -> list[Chart]:
    ours, floor = ([found[f"{who}-{count}"] for count in CALLERS] for who in ("api", "floor"))
    who = {"runtime API": ours, "floor: its writes alone": floor}
    across = "creates at a time"
    rates = {name: [each.per_second for each in burdens] for name, burdens in who.items()}
    p50 = {f"{name}, p50": [1000 * each.latency(0.5) for each in burdens] for name, burdens in who.items()}
    p99 = {f"{name}, p99": [1000 * each.latency(0.99) for each in burdens] for name, burdens in who.items()}
    return [
        Chart("throughput", "creates per second", across, list(CALLERS), rates),
        Chart("latency", "time of a create, ms", across, list(CALLERS), p50 | p99),
    ]


if __name__ == "__main__":
    main()
