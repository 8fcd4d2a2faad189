"""What the controller manager costs, against floors that are measured in the same run.

    python -m bench.controller [--units 100 1000 2000] [--rest-at 1000]

The real process runs under its own identity against a real API server, etcd, scheduler and Kubernetes' own
controllers; only the nodes are simulated. CPU and memory are what the kernel says of the process.

Writes are counted by the API server, in two ways that must agree. Its metrics (apiserver_request_total) do not say who
wrote, so they are taken of what nobody but the controller manager writes while units converge: Deployments and Services
without their subresources, and the status of GPUUnits. Its audit log, kept for the controller manager's user alone,
says who wrote and covers every kind. Events and Leases are left out of both.

The floors: of CPU and time, the same writes (a Deployment, a Service, two patches of a status per unit) with aiohttp
and msgspec and nothing between, as many at a time as the controller manager has workers, right after each step; of
memory, the same process before there are units; of the Kubernetes client, see `bench/kube_client.py`.
"""

import argparse
import asyncio
import statistics
import sys
import time

import msgspec

from bench import kube_client
from bench.convergence import Findings, Rest, Step, observe, site
from bench.table import Row, print_table
from localcluster.control_plane import control_plane
from localcluster.places import LOCAL

RESULTS = LOCAL / "bench" / "controller.json"


class Report(msgspec.Struct):
    findings: Findings
    client: dict[str, dict[str, float]]
    """Milliseconds of CPU per request, by contender and verb."""
    rows: list[Row] = []
    seconds: float = 0


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[100, 1000, 2000], help="rising")
    parser.add_argument("--rest-at", type=int, default=1000, help="one of them")
    options = parser.parse_args()
    started = time.perf_counter()
    client = measure_client()
    report = Report(asyncio.run(measure_manager(options.units, options.rest_at)), client)
    report.rows = [*client_rows(client), *manager_rows(report.findings)]
    report.seconds = time.perf_counter() - started
    print_table(report.rows)
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_bytes(msgspec.json.format(msgspec.json.encode(report)))
    print(f"\nTook {report.seconds:.0f} s. All figures: {RESULTS.relative_to(LOCAL.parent)}")
    sys.exit(any(row.missed for row in report.rows))


def measure_client() -> dict[str, dict[str, float]]:
    _tell("the Kubernetes client")
    with control_plane(nodes=0) as plane:
        contenders = asyncio.run(kube_client.measure(plane, requests=1000, rounds=3, concurrency=16))
    return {each.name: {verb: 1000 * statistics.median(cpu) for verb, cpu in each.cpu.items()} for each in contenders}


async def measure_manager(steps: list[int], rest_at: int) -> Findings:
    async with site(steps[-1]) as at:
        return await observe(at, steps, rest_at, _tell)


def client_rows(client: dict[str, dict[str, float]]) -> list[Row]:
    least, ours = client.values()
    return [
        Row(
            f"Kubernetes client: CPU per {verb}",
            ours[verb],
            "ms",
            least[verb],
            f"{kube_client.LIMIT:g}x the floor",
            missed=ours[verb] > kube_client.LIMIT * least[verb],
        )
        for verb in least
    ]


def manager_rows(found: Findings) -> list[Row]:
    last = found.steps[-1]
    cpu, wall = sum(each.cpu for each in found.steps), sum(each.wall for each in found.steps)
    floor_cpu = sum(each.floor_cpu_per_unit * each.new for each in found.steps)
    floor_wall = sum(each.floor_wall / each.floor_units * each.new for each in found.steps)
    rows = [
        Row(f"CPU for converging {last.units} units", cpu, "s", floor_cpu, "20 s", missed=cpu > 20),
        Row(f"time until {last.units} units are Ready", wall, "s", floor_wall),
        Row(f"RSS at {last.units} units", last.rss, "MB", found.empty_rss, "250 MB", missed=last.rss > 250),
        Row(
            f"RSS at most until {last.units} units",
            last.peak_rss,
            "MB",
            found.empty_rss,
            "250 MB",
            missed=last.peak_rss > 250,
        ),
    ]
    rows += [_writes_row(each) for each in found.steps]
    rows += [_growth_row(each, found.steps[0]) for each in found.steps]
    if found.rest:
        rows += _rest_rows(found.rest, "of rest")
    if found.restart:
        restart = found.restart
        rows += [
            Row(f"CPU of a new process at {restart.units} units", restart.cpu, "s", found.empty_cpu),
            Row(f"RSS of a new process at {restart.units} units", restart.rss, "MB", found.empty_rss),
            Row("writes of a new process", sum(restart.writes.values()), "", 0, "0", missed=any(restart.writes)),
        ]
    if found.looked_at_again:
        rows += _rest_rows(found.looked_at_again, "in which each is looked at again twice")
    return rows


def _writes_row(step: Step) -> Row:
    what = f"writes per unit from creation to Ready, {step.units} units"
    return Row(what, step.writes_per_unit, "", 4, "6", missed=step.writes_per_unit > 6)


def _growth_row(step: Step, first: Step) -> Row:
    """Beside the floor's own growth, since a busy machine makes every second of CPU do less."""
    growth = step.cpu_per_unit / first.cpu_per_unit
    what = f"CPU per unit up to {step.units} units ({growth:.2f}x the first)"
    return Row(what, 1000 * step.cpu_per_unit, "ms", 1000 * step.floor_cpu_per_unit)


def _rest_rows(rest: Rest, words: str) -> list[Row]:
    minutes, written = rest.seconds / 60, sum(rest.writes.values())
    return [
        Row(f"writes per minute {words}, {rest.units} units", written / minutes, "", 0, "0", missed=written > 0),
        Row(f"CPU per minute {words}, {rest.units} units", rest.cpu / minutes, "s", None),
    ]


def _tell(what: str) -> None:
    print(f"… {what}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
