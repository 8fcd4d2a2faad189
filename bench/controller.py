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
from bench.controller_runs import ControllerRuns, IdlePeriod, ScaleStep, run_controller_steps
from bench.floors.unit_writes import WRITES_PER_UNIT
from bench.report import BenchmarkResult, Chart, Row, log_progress, report_and_exit
from bench.start_controller_manager import CONTROLLER_MANAGER_USER
from bench.testbed import testbed

TARGET_UNITS, MAX_CPU_SECONDS, MAX_RSS_MEGABYTES, MAX_WRITES_PER_UNIT, MAX_CPU_GROWTH_RATIO = 2000, 20, 250, 6, 1.3


class ControllerDetails(msgspec.Struct):
    client: kube_client_runs.ClientComparison
    controller: ControllerRuns


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--units", type=int, nargs="+", default=[100, 1000, 2000, 5000], help="rising")
    parser.add_argument("--rest-at", type=int, default=1000, help="one of them")
    options = parser.parse_args()
    report_and_exit("controller", lambda: asyncio.run(measure(options.units, options.rest_at)))


async def measure(steps: list[int], rest_at: int) -> BenchmarkResult:
    async with testbed(steps[-1] + 500, CONTROLLER_MANAGER_USER) as at:
        log_progress("the Kubernetes client")
        client = await kube_client_runs.measure(at.control_plane, requests=500, rounds=5, concurrency=16)
        found = await run_controller_steps(at, steps, rest_at)
    rows = [*client_rows(client), *target_rows(found), *step_rows(found), *idle_and_restart_rows(found)]
    return BenchmarkResult(rows, charts(found), ControllerDetails(client, found))


def client_rows(client: kube_client_runs.ClientComparison) -> list[Row]:
    most = kube_client_runs.MAX_CPU_RATIO
    return [
        Row(
            f"Kubernetes client: CPU per {verb}",
            ours,
            "ms",
            client.floor[verb],
            f"{most:g}x the floor",
            missed=ours > most * client.floor[verb],
        )
        for verb, ours in client.product.items()
    ]


def target_rows(found: ControllerRuns) -> list[Row]:
    """What is promised of 2,000 units; of a smaller run, what is true of all of its units."""
    steps = [step for step in found.steps if step.units <= TARGET_UNITS]
    last, cpu = steps[-1], sum(each.cpu_seconds for each in steps)
    floor_cpu = sum(each.floor.cpu_seconds * each.new_units for each in steps)
    return [
        Row(
            f"CPU for converging {last.units} units",
            cpu,
            "s",
            floor_cpu,
            f"{MAX_CPU_SECONDS} s",
            missed=cpu > MAX_CPU_SECONDS,
        ),
        _rss_row(f"RSS at {last.units} units", last.rss_megabytes, found),
        _rss_row(f"RSS at most until {last.units} units", last.peak_rss_megabytes, found),
    ]


def _rss_row(what: str, megabytes: float, found: ControllerRuns) -> Row:
    return Row(
        what,
        megabytes,
        "MB",
        found.empty_rss_megabytes,
        f"{MAX_RSS_MEGABYTES} MB",
        missed=megabytes > MAX_RSS_MEGABYTES,
    )


def step_rows(found: ControllerRuns) -> list[Row]:
    return [row for step in found.steps for row in _rows_of_step(step, found)]


def _rows_of_step(step: ScaleStep, found: ControllerRuns) -> list[Row]:
    up_to, first = f"up to {step.units} units", found.steps[0]
    rows = [
        Row(
            f"{up_to}: time per unit until all are Ready",
            1000 * step.wall_seconds / step.new_units,
            "ms",
            1000 * step.floor.wall_seconds,
        ),
        Row(f"{up_to}: CPU per unit", 1000 * step.cpu_seconds_per_unit, "ms", 1000 * step.floor.cpu_seconds),
        _writes_row(f"{up_to}: writes per unit", step),
        Row(
            f"{up_to}: requests per unit, Events, Leases and reads included",
            step.requests / step.new_units,
            "",
            WRITES_PER_UNIT,
        ),
        Row(f"{up_to}: RSS", step.rss_megabytes, "MB", found.empty_rss_megabytes),
    ]
    return (
        rows
        if step is first
        else [*rows, _growth_row(f"{up_to}: CPU per unit, against the first {first.units}", step, first)]
    )


def _writes_row(what: str, step: ScaleStep) -> Row:
    return Row(
        what,
        step.writes_per_unit,
        "",
        WRITES_PER_UNIT,
        f"{MAX_WRITES_PER_UNIT}",
        missed=step.writes_per_unit > MAX_WRITES_PER_UNIT,
    )


def _growth_row(what: str, step: ScaleStep, first: ScaleStep) -> Row:
    """Beside the floor's own growth, since a busy machine makes every second of CPU do less."""
    growth, floor = (
        step.cpu_seconds_per_unit / first.cpu_seconds_per_unit,
        step.floor.cpu_seconds / first.floor.cpu_seconds,
    )
    return Row(what, growth, "x", floor, f"{MAX_CPU_GROWTH_RATIO:g}x", missed=growth > MAX_CPU_GROWTH_RATIO)


def idle_and_restart_rows(found: ControllerRuns) -> list[Row]:
    rows = _idle_rows(found.idle, "of rest") if found.idle else []
    if restart := found.restart:
        rows += [
            Row(f"CPU of a new process at {restart.units} units", restart.cpu_seconds, "s", found.empty_cpu_seconds),
            Row(
                f"RSS of a new process at {restart.units} units", restart.rss_megabytes, "MB", found.empty_rss_megabytes
            ),
            Row("writes of a new process", sum(restart.writes.values()), "", 0, "0", missed=any(restart.writes)),
        ]
    again = found.resync
    return rows + (_idle_rows(again, "in which each is looked at again twice") if again else [])


def _idle_rows(rest: IdlePeriod, words: str) -> list[Row]:
    minutes, written = rest.seconds / 60, sum(rest.writes.values())
    return [
        Row(f"writes per minute {words}, {rest.units} units", written / minutes, "", 0, "0", missed=written > 0),
        Row(f"CPU per minute {words}, {rest.units} units", rest.cpu_seconds / minutes, "s", None),
    ]


def charts(found: ControllerRuns) -> list[Chart]:
    units = [step.units for step in found.steps]
    cpu = {
        "controller manager": [1000 * step.cpu_seconds_per_unit for step in found.steps],
        "floor: its writes alone": [1000 * step.floor.cpu_seconds for step in found.steps],
    }
    rss = {
        "controller manager": [step.rss_megabytes for step in found.steps],
        "floor: without units": [found.empty_rss_megabytes for _ in found.steps],
    }
    wall = {
        "until Ready": [1000 * step.wall_seconds / step.new_units for step in found.steps],
        "floor: its writes alone": [1000 * step.floor.wall_seconds for step in found.steps],
    }
    most = MAX_CPU_GROWTH_RATIO * 1000 * found.steps[0].cpu_seconds_per_unit
    return [
        Chart("cpu", "CPU of the controller manager per unit, ms", "units", units, cpu, most),
        Chart("memory", "resident memory, MB", "units", units, rss, MAX_RSS_MEGABYTES),
        Chart("time", "time per unit, ms", "units", units, wall),
    ]


if __name__ == "__main__":
    main()
