"""What the controller manager costs, against floors that are measured in the same run.

    python -m bench.controller [--units 100 1000 2000 5000] [--rest-at 1000]

The real process runs under its own identity against a real API server, etcd, scheduler and Kubernetes' own
controllers; only the nodes are simulated. CPU and memory are what the kernel says of the process. Before the units that
count come a few that do not, so that the cost of starting is in none of them.

Writes are counted by the API server, in two ways that must agree. Its metrics (apiserver_request_total) do not say who
wrote, so they are taken of what nobody but the controller manager writes while units converge: Deployments, Services
and NetworkPolicies without their subresources, and the status of GPUUnits. Its audit log, kept for the controller
manager's user alone, says who wrote and covers every kind. Events and Leases are left out of both.

The floors: of CPU and time, `bench/floors/unit_writes.py`, right after each step; of memory, the same process before
there are units; of the Kubernetes client, see `bench/kube_client_runs.py`.
"""

import argparse
import asyncio

import msgspec

from bench import kube_client_runs
from bench.controller_runs import Convergence, Rest, Step, observe
from bench.floors.unit_writes import WRITES
from bench.report import Chart, Findings, Row, present, tell
from bench.start_controller_manager import IDENTITY
from bench.testbed import site

PROMISED_UNITS, CPU, RSS, MOST_WRITES, GROWTH = 2000, 20, 250, 6, 1.3


class Details(msgspec.Struct):
    client: kube_client_runs.Comparison
    convergence: Convergence


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[100, 1000, 2000, 5000], help="rising")
    parser.add_argument("--rest-at", type=int, default=1000, help="one of them")
    options = parser.parse_args()
    present("controller", lambda: asyncio.run(measure(options.units, options.rest_at)))


async def measure(steps: list[int], rest_at: int) -> Findings:
    async with site(steps[-1] + 500, IDENTITY) as at:
        tell("the Kubernetes client")
        client = await kube_client_runs.measure(at.plane, requests=500, rounds=5, concurrency=16)
        found = await observe(at, steps, rest_at)
    rows = [*client_rows(client), *promised_rows(found), *step_rows(found), *rest_rows(found)]
    return Findings(rows, charts(found), Details(client, found))


def client_rows(client: kube_client_runs.Comparison) -> list[Row]:
    most = kube_client_runs.LIMIT
    return [
        Row(
            f"Kubernetes client: CPU per {verb}",
            ours,
            "ms",
            client.floor[verb],
            f"{most:g}x the floor",
            missed=ours > most * client.floor[verb],
        )
        for verb, ours in client.ours.items()
    ]


def promised_rows(found: Convergence) -> list[Row]:
    """What is promised of 2,000 units; of a smaller run, what is true of all of its units."""
    steps = [step for step in found.steps if step.units <= PROMISED_UNITS]
    last, cpu = steps[-1], sum(each.cpu for each in steps)
    floor_cpu = sum(each.floor.cpu * each.new for each in steps)
    return [
        Row(f"CPU for converging {last.units} units", cpu, "s", floor_cpu, f"{CPU} s", missed=cpu > CPU),
        _rss_row(f"RSS at {last.units} units", last.rss, found),
        _rss_row(f"RSS at most until {last.units} units", last.peak_rss, found),
    ]


def _rss_row(what: str, megabytes: float, found: Convergence) -> Row:
    return Row(what, megabytes, "MB", found.empty_rss, f"{RSS} MB", missed=megabytes > RSS)


def step_rows(found: Convergence) -> list[Row]:
    return [row for step in found.steps for row in _rows_of(step, found)]


def _rows_of(step: Step, found: Convergence) -> list[Row]:
    up_to, first = f"up to {step.units} units", found.steps[0]
    rows = [
        Row(f"{up_to}: time per unit until all are Ready", 1000 * step.wall / step.new, "ms", 1000 * step.floor.wall),
        Row(f"{up_to}: CPU per unit", 1000 * step.cpu_per_unit, "ms", 1000 * step.floor.cpu),
        _writes_row(f"{up_to}: writes per unit", step),
        Row(f"{up_to}: requests per unit, Events, Leases and reads included", step.requests / step.new, "", WRITES),
        Row(f"{up_to}: RSS", step.rss, "MB", found.empty_rss),
    ]
    return (
        rows
        if step is first
        else [*rows, _growth_row(f"{up_to}: CPU per unit, against the first {first.units}", step, first)]
    )


def _writes_row(what: str, step: Step) -> Row:
    return Row(what, step.writes_per_unit, "", WRITES, f"{MOST_WRITES}", missed=step.writes_per_unit > MOST_WRITES)


def _growth_row(what: str, step: Step, first: Step) -> Row:
    """Beside the floor's own growth, since a busy machine makes every second of CPU do less."""
    growth, floor = step.cpu_per_unit / first.cpu_per_unit, step.floor.cpu / first.floor.cpu
    return Row(what, growth, "x", floor, f"{GROWTH:g}x", missed=growth > GROWTH)


def rest_rows(found: Convergence) -> list[Row]:
    rows = _rest_rows(found.rest, "of rest") if found.rest else []
    if restart := found.restart:
        rows += [
            Row(f"CPU of a new process at {restart.units} units", restart.cpu, "s", found.empty_cpu),
            Row(f"RSS of a new process at {restart.units} units", restart.rss, "MB", found.empty_rss),
            Row("writes of a new process", sum(restart.writes.values()), "", 0, "0", missed=any(restart.writes)),
        ]
    again = found.looked_at_again
    return rows + (_rest_rows(again, "in which each is looked at again twice") if again else [])


def _rest_rows(rest: Rest, words: str) -> list[Row]:
    minutes, written = rest.seconds / 60, sum(rest.writes.values())
    return [
        Row(f"writes per minute {words}, {rest.units} units", written / minutes, "", 0, "0", missed=written > 0),
        Row(f"CPU per minute {words}, {rest.units} units", rest.cpu / minutes, "s", None),
    ]


def charts(found: Convergence) -> list[Chart]:
    units = [step.units for step in found.steps]
    cpu = {
        "controller manager": [1000 * step.cpu_per_unit for step in found.steps],
        "floor: its writes alone": [1000 * step.floor.cpu for step in found.steps],
    }
    rss = {
        "controller manager": [step.rss for step in found.steps],
        "floor: without units": [found.empty_rss for _ in found.steps],
    }
    wall = {
        "until Ready": [1000 * step.wall / step.new for step in found.steps],
        "floor: its writes alone": [1000 * step.floor.wall for step in found.steps],
    }
    most = GROWTH * 1000 * found.steps[0].cpu_per_unit
    return [
        Chart("cpu", "CPU of the controller manager per unit, ms", "units", units, cpu, most),
        Chart("memory", "resident memory, MB", "units", units, rss, RSS),
        Chart("time", "time per unit, ms", "units", units, wall),
    ]


if __name__ == "__main__":
    main()
