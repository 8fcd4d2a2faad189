"""Measures the cost of the controller manager and compares it with floors that are measured in the same run.

    python -m bench.controller [--units 100 1000 2000 5000] [--idle-at 1000]

The real process runs with its own identity against a real API server, etcd, scheduler and Kubernetes' own controllers.
Only the nodes are simulated. CPU time and memory come from the kernel. The benchmark creates a few units before the
measured ones, so that the measured units do not include startup costs.

The API server counts the writes in two ways. Its metrics (apiserver_request_total) do not contain the
user. Therefore they are counted only for resources that no other process writes while units converge: Deployments,
Services and NetworkPolicies without their subresources, and the status of GPUUnits. Its audit log covers all kinds, and
contains only the requests of the controller manager's user. Events and Leases are excluded from both.

The floors: for CPU and time `bench/floors/unit_writes.py`, right after each step; for memory the same process before
units exist; for the Kubernetes client `bench/kube_client_runs.py`.
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
    parser.add_argument(
        "--units", type=int, nargs="+", default=[100, 1000, 2000, 5000], help="numbers of units, in ascending order"
    )
    parser.add_argument(
        "--idle-at", type=int, default=1000, help="the number of units at which the idle process is measured"
    )
    options = parser.parse_args()
    report_and_exit("controller", lambda: asyncio.run(measure(options.units, options.idle_at)))


async def measure(steps: list[int], idle_at: int) -> BenchmarkResult:
    async with testbed(steps[-1] + 500, CONTROLLER_MANAGER_USER) as bed:
        log_progress("the Kubernetes client")
        client = await kube_client_runs.measure(bed.control_plane, requests=500, rounds=5, concurrency=16)
        runs = await run_controller_steps(bed, steps, idle_at)
    rows = [*client_rows(client), *target_rows(runs), *step_rows(runs), *idle_and_restart_rows(runs)]
    return BenchmarkResult(rows, charts(runs), ControllerDetails(client, runs))


def client_rows(client: kube_client_runs.ClientComparison) -> list[Row]:
    max_ratio = kube_client_runs.MAX_CPU_RATIO
    return [
        Row(
            f"Kubernetes client: CPU per {verb}",
            ours,
            "ms",
            client.floor[verb],
            f"{max_ratio:g}x the floor",
            missed=ours > max_ratio * client.floor[verb],
        )
        for verb, ours in client.product.items()
    ]


def target_rows(runs: ControllerRuns) -> list[Row]:
    """Return the rows with targets. The targets apply to 2,000 units, or to all units of a smaller run."""
    steps = [step for step in runs.steps if step.units <= TARGET_UNITS]
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
        _rss_row(f"RSS at {last.units} units", last.rss_megabytes, runs),
        _rss_row(f"peak RSS up to {last.units} units", last.peak_rss_megabytes, runs),
    ]


def _rss_row(label: str, megabytes: float, runs: ControllerRuns) -> Row:
    return Row(
        label,
        megabytes,
        "MB",
        runs.empty_rss_megabytes,
        f"{MAX_RSS_MEGABYTES} MB",
        missed=megabytes > MAX_RSS_MEGABYTES,
    )


def step_rows(runs: ControllerRuns) -> list[Row]:
    return [row for step in runs.steps for row in _rows_of_step(step, runs)]


def _rows_of_step(step: ScaleStep, runs: ControllerRuns) -> list[Row]:
    label, first = f"up to {step.units} units", runs.steps[0]
    rows = [
        Row(
            f"{label}: time per unit until all are Ready",
            1000 * step.wall_seconds / step.new_units,
            "ms",
            1000 * step.floor.wall_seconds,
        ),
        Row(f"{label}: CPU per unit", 1000 * step.cpu_seconds_per_unit, "ms", 1000 * step.floor.cpu_seconds),
        _writes_row(f"{label}: writes per unit", step),
        Row(
            f"{label}: requests per unit, Events, Leases and reads included",
            step.requests / step.new_units,
            "",
            WRITES_PER_UNIT,
        ),
        Row(f"{label}: RSS", step.rss_megabytes, "MB", runs.empty_rss_megabytes),
    ]
    return (
        rows
        if step is first
        else [*rows, _growth_row(f"{label}: CPU per unit, against the first {first.units}", step, first)]
    )


def _writes_row(label: str, step: ScaleStep) -> Row:
    return Row(
        label,
        step.writes_per_unit,
        "",
        WRITES_PER_UNIT,
        f"{MAX_WRITES_PER_UNIT}",
        missed=step.writes_per_unit > MAX_WRITES_PER_UNIT,
    )


def _growth_row(label: str, step: ScaleStep, first: ScaleStep) -> Row:
    """Compare with the growth of the floor, because a second of CPU time does less work on a busy machine."""
    growth, floor = (
        step.cpu_seconds_per_unit / first.cpu_seconds_per_unit,
        step.floor.cpu_seconds / first.floor.cpu_seconds,
    )
    return Row(label, growth, "x", floor, f"{MAX_CPU_GROWTH_RATIO:g}x", missed=growth > MAX_CPU_GROWTH_RATIO)


def idle_and_restart_rows(runs: ControllerRuns) -> list[Row]:
    rows = _idle_rows(runs.idle, "when idle") if runs.idle else []
    if restart := runs.restart:
        rows += [
            Row(f"CPU of a new process at {restart.units} units", restart.cpu_seconds, "s", runs.empty_cpu_seconds),
            Row(
                f"RSS of a new process at {restart.units} units", restart.rss_megabytes, "MB", runs.empty_rss_megabytes
            ),
            Row("writes of a new process", sum(restart.writes.values()), "", 0, "0", missed=any(restart.writes)),
        ]
    again = runs.resync
    return rows + (_idle_rows(again, "with two resyncs of all units") if again else [])


def _idle_rows(period: IdlePeriod, label: str) -> list[Row]:
    minutes, writes = period.seconds / 60, sum(period.writes.values())
    return [
        Row(f"writes per minute {label}, {period.units} units", writes / minutes, "", 0, "0", missed=writes > 0),
        Row(f"CPU per minute {label}, {period.units} units", period.cpu_seconds / minutes, "s", None),
    ]


def charts(runs: ControllerRuns) -> list[Chart]:
    units = [step.units for step in runs.steps]
    cpu = {
        "controller manager": [1000 * step.cpu_seconds_per_unit for step in runs.steps],
        "floor: its writes alone": [1000 * step.floor.cpu_seconds for step in runs.steps],
    }
    rss = {
        "controller manager": [step.rss_megabytes for step in runs.steps],
        "floor: without units": [runs.empty_rss_megabytes for _ in runs.steps],
    }
    wall = {
        "until Ready": [1000 * step.wall_seconds / step.new_units for step in runs.steps],
        "floor: its writes alone": [1000 * step.floor.wall_seconds for step in runs.steps],
    }
    max_ratio = MAX_CPU_GROWTH_RATIO * 1000 * runs.steps[0].cpu_seconds_per_unit
    return [
        Chart("cpu", "CPU of the controller manager per unit, ms", "units", units, cpu, max_ratio),
        Chart("memory", "resident memory, MB", "units", units, rss, MAX_RSS_MEGABYTES),
        Chart("time", "time per unit, ms", "units", units, wall),
    ]


if __name__ == "__main__":
    main()
