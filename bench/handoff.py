"""What a handoff costs: POST /gpu-units, beside floors that are measured in the same run.

    python -m bench.handoff [--units 450]

The runtime API, one replica and then two, is the real process under its own identity, against a real API server and
etcd. The creates come over HTTP from a process of its own, 45 per second at times that are fixed beforehand, and then
so many at a time. The floor: the same writes by another process with aiohttp and msgspec and nothing between, at the
same rate against the same API server.

What is promised is measured without controllers at work: stock is said to be Ready, and nobody makes the units Ready
meanwhile, since two cores cannot do that 45 times per second. For information the same comes once more, on another
control plane with simulated nodes, while the controller manager makes all of it Ready, beside a floor of its own.

Writes are counted by the API server, in two ways that must agree: by its metrics, of what only the runtime API writes,
and by its audit log, kept for the runtime API's user alone.
"""

import argparse
import asyncio
import sys
import time

import msgspec

from bench.handing_over import RATE, Burden, Load, observe, quantile
from bench.table import Row, print_table
from localcluster.places import LOCAL

RESULTS = LOCAL / "bench" / "handoff.json"
AT_A_TIME = (8, 32)
P50, P99, WRITES = 0.030, 0.150, 6


class Report(msgspec.Struct):
    burdens: list[Burden]
    rows: list[Row] = []
    seconds: float = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--units", type=int, default=450, help="creates at the rate, on one replica without controllers"
    )
    units = parser.parse_args().units
    started = time.perf_counter()
    report = Report(asyncio.run(observe(loads(units), _tell)))
    report.rows = rows({burden.load.name: burden for burden in report.burdens})
    report.seconds = time.perf_counter() - started
    print_table(report.rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\nTook {report.seconds:.0f} s. All figures: {RESULTS.relative_to(LOCAL.parent)}")
    sys.exit(any(row.missed for row in report.rows))


def loads(units: int) -> list[Load]:
    some, less, few = units // 2, units // 5, max(20, units // 6)
    return [
        Load("one-replica", units, replicas=1, rate=RATE),
        Load("two-replicas", some, replicas=2, rate=RATE),
        Load("floor", some, replicas=0, rate=RATE),
        *(Load(f"api-{count}", few, replicas=1, at_a_time=count) for count in AT_A_TIME),
        *(Load(f"floor-{count}", few, replicas=0, at_a_time=count) for count in AT_A_TIME),
        Load("one-controlled", less, replicas=1, rate=RATE, controlled=True),
        Load("two-controlled", less, replicas=2, rate=RATE, controlled=True),
        Load("floor-controlled", less, replicas=0, rate=RATE, controlled=True),
    ]


def rows(found: dict[str, Burden]) -> list[Row]:
    floor, controlled = found["floor"], found["floor-controlled"]
    return [
        *rate_rows("no controllers, one replica", found["one-replica"], floor),
        *rate_rows("no controllers, two replicas", found["two-replicas"], floor),
        *(_throughput_row(found, count) for count in AT_A_TIME),
        *rate_rows("controllers at work, one replica", found["one-controlled"], controlled),
        *rate_rows("controllers at work, two replicas", found["two-controlled"], controlled),
    ]


def rate_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    rows = [*_promised_rows(who, burden, floor), *_cost_rows(who, burden, floor)]
    if not burden.load.controlled:
        return rows
    pod, floor_pod = (quantile(each.until_pod, 0.5) for each in (burden, floor))
    return [*map(_for_information, rows), Row(f"{who}: p50 until the pod exists", pod, "s", floor_pod)]


def _for_information(row: Row) -> Row:
    return msgspec.structs.replace(row, target="", missed=False)


def _promised_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    p50, p99, refused = burden.latency(0.5), burden.latency(0.99), len(burden.refusals)
    written, listed = burden.writes_per_create, burden.lists
    return [
        Row(f"{who}: HTTP p50 at {RATE}/s", 1000 * p50, "ms", 1000 * floor.latency(0.5), "30 ms", missed=p50 > P50),
        Row(f"{who}: HTTP p99 at {RATE}/s", 1000 * p99, "ms", 1000 * floor.latency(0.99), "150 ms", missed=p99 > P99),
        Row(f"{who}: answers that are not 201", refused, "", 0, "0", missed=refused > 0),
        Row(f"{who}: writes per unit", written, "", floor.writes_per_create, "6", missed=written > WRITES),
        Row(f"{who}: lists for {burden.load.stock} creates", listed, "", 0, "0", missed=listed > 0),
    ]


def _cost_rows(who: str, burden: Burden, floor: Burden) -> list[Row]:
    return [
        Row(f"{who}: reads per create, by the sweep", burden.reads_per_create, "", 0),
        _cpu_row(f"{who}: CPU per create", burden.cpu_of_contender, floor.cpu_of_contender),
        _cpu_row(f"{who}: the API server's CPU per create", burden.cpu_of_api_server, floor.cpu_of_api_server),
    ]


def _cpu_row(what: str, seconds: float, floor: float) -> Row:
    return Row(what, 1000 * seconds, "ms", 1000 * floor)


def _throughput_row(found: dict[str, Burden], count: int) -> Row:
    alone, floor = (found[f"{who}-{count}"].per_second for who in ("api", "floor"))
    return Row(f"no controllers, one replica: creates per second, {count} at a time", alone, "", floor)


def _tell(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
