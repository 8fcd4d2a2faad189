"""What units cost the controller manager: while they become Ready, while they rest, and when it starts anew."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bench.floors.unit_writes import NAMESPACE as FLOOR_NAMESPACE
from bench.floors.unit_writes import UnitCost, measure_unit_writes
from bench.kube_api import RawKubeClient, counts_by_name, for_each_concurrently, select_writes, writes_from_metrics
from bench.measured_process import MeasuredProcess
from bench.report import log_progress
from bench.start_controller_manager import start_controller_manager
from bench.testbed import ALL_UNITS_PATH, RECONCILES_METRIC, Testbed, units_path, wait_until_all_ready, wait_until_idle
from localcluster.supervisor_client import tail_log, wait_until

NAMESPACE_COUNT = 10
"""Kubernetes' own controllers compare every pod with every Service of its namespace, which at 5,000 in one takes them
longer than all else. That is not what is measured here, so the units are spread."""
WARM_UP_UNITS = 20
"""Units before those that count: connections are opened, and code runs for the first time."""
MAX_CONCURRENT_CREATES = 16
CONTROLLER_WRITTEN_RESOURCES = {("gpuunits", "status"), ("deployments", ""), ("services", ""), ("networkpolicies", "")}
"""What nobody but the controller manager writes while it converges: Kubernetes itself writes `deployments/status`, and
the benchmark creates `gpuunits`."""
RESYNC_SECONDS = 10
"""Seconds after which each of all units is looked at again, in the last part."""
IDLE_SECONDS = 20

UNIT_SPEC = {
    "specName": "g1.1",
    "image": "python:3.12",
    "memory": "1Gi",
    "gpu": 1,
    "access": {"primaryPort": "http", "scheme": "http"},
    "template": {
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "envs": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "port": 8080}],
    },
}


class ScaleStep(msgspec.Struct):
    """More units, from their creation until all are Ready and nothing moves. Seconds, MB and requests."""

    units: int
    """So many there are at the end of the step."""
    new_units: int
    cpu_seconds: float = 0
    wall_seconds: float = 0
    rss_megabytes: float = 0
    peak_rss_megabytes: float = 0
    requests: int = 0
    """All of the controller manager's, by the API server's audit log."""
    audited_writes: dict[str, int] = {}
    """Its writes by the same."""
    metric_writes: dict[str, int] = {}
    """Its writes by the API server's metrics."""
    floor: UnitCost = UnitCost(0, 0)

    @property
    def writes_per_unit(self) -> float:
        """By the metrics, or by the audit log if that knows of more."""
        return max(sum(self.metric_writes.values()), sum(self.audited_writes.values())) / self.new_units

    @property
    def cpu_seconds_per_unit(self) -> float:
        return self.cpu_seconds / self.new_units


class IdlePeriod(msgspec.Struct):
    """Some time in which nothing changes."""

    units: int
    seconds: float
    cpu_seconds: float
    reconciles: float
    writes: dict[str, int]


class Restart(msgspec.Struct):
    """A new process that finds all units Ready, until it has looked at each of them."""

    units: int
    cpu_seconds: float
    rss_megabytes: float
    peak_rss_megabytes: float
    writes: dict[str, int]


class ControllerRuns(msgspec.Struct):
    empty_cpu_seconds: float = 0
    empty_rss_megabytes: float = 0
    """Of a controller manager that has nothing to do: the floor of its memory."""
    steps: list[ScaleStep] = []
    idle: IdlePeriod | None = None
    restart: Restart | None = None
    resync: IdlePeriod | None = None


async def run_controller_steps(at: Testbed, steps: Sequence[int], rest_at: int) -> ControllerRuns:
    for namespace in (*map(namespace_of, range(NAMESPACE_COUNT)), FLOOR_NAMESPACE):
        await at.kube.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    found = ControllerRuns()
    with start_controller_manager(at.control_plane, at.folder) as process:
        await asyncio.sleep(1)
        found.empty_cpu_seconds, (found.empty_rss_megabytes, _) = process.cpu_seconds(), process.rss_megabytes()
        await create_ready_units(at.kube, 0, WARM_UP_UNITS)
        for before, units in pairwise((0, *steps)):
            log_progress(f"{units - before} more units, {units} in all")
            step = await run_step(at, process, before, units)
            step.floor = await measure_unit_writes(at.kube, min(step.new_units, 300), f"of-{units}")
            found.steps.append(step)
            if units == rest_at:
                log_progress(f"{IDLE_SECONDS} s of rest at {units} units")
                await wait_until_idle(process)
                found.idle = await run_idle(at, process, units, IDLE_SECONDS)
    log_progress(f"another process at {steps[-1]} units")
    with start_controller_manager(at.control_plane, at.folder, resyncSeconds=RESYNC_SECONDS) as process:
        found.restart = await run_restart(at, process, steps[-1])
        found.resync = await run_idle(at, process, steps[-1], 2 * RESYNC_SECONDS)
    return found


async def run_step(at: Testbed, process: MeasuredProcess, before: int, units: int) -> ScaleStep:
    step = ScaleStep(units, units - before)
    await wait_until_idle(process)
    metered = writes_from_metrics(at.control_plane, CONTROLLER_WRITTEN_RESOURCES)
    at.audit_log.read_new()
    cpu, wall = process.cpu_seconds(), time.perf_counter()
    await create_ready_units(at.kube, WARM_UP_UNITS + before, WARM_UP_UNITS + units)
    step.wall_seconds = time.perf_counter() - wall
    await wait_until_idle(process)
    step.cpu_seconds = process.cpu_seconds() - cpu
    step.rss_megabytes, step.peak_rss_megabytes = process.rss_megabytes()
    asked = at.audit_log.read_new()
    step.requests, step.audited_writes = asked.total(), counts_by_name(select_writes(asked))
    step.metric_writes = counts_by_name(writes_from_metrics(at.control_plane, CONTROLLER_WRITTEN_RESOURCES) - metered)
    return step


async def create_ready_units(api: RawKubeClient, before: int, units: int) -> None:
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        tasks.create_task(
            for_each_concurrently(
                MAX_CONCURRENT_CREATES, range(before, units), lambda number: _create_unit(api, number)
            )
        )
        tasks.create_task(wait_until_all_ready(api, ALL_UNITS_PATH, units))


async def run_idle(at: Testbed, process: MeasuredProcess, units: int, seconds: float) -> IdlePeriod:
    at.audit_log.read_new()
    looks, cpu, wall = process.metric_sum(RECONCILES_METRIC), process.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    passed, spent = time.perf_counter() - wall, process.cpu_seconds() - cpu
    return IdlePeriod(
        units,
        passed,
        spent,
        process.metric_sum(RECONCILES_METRIC) - looks,
        counts_by_name(select_writes(at.audit_log.read_new())),
    )


async def run_restart(at: Testbed, process: MeasuredProcess, units: int) -> Restart:
    wait_until(
        lambda: process.metric_sum(RECONCILES_METRIC) >= WARM_UP_UNITS + units,
        120,
        lambda: f"it is not done:\n{tail_log(process.log_path)}",
    )
    return Restart(
        units, process.cpu_seconds(), *process.rss_megabytes(), counts_by_name(select_writes(at.audit_log.read_new()))
    )


def namespace_of(number: int) -> str:
    return f"bench-{number % NAMESPACE_COUNT}"


async def _create_unit(api: RawKubeClient, number: int) -> None:
    metadata = {"name": f"unit-{number}", "namespace": namespace_of(number)}
    unit = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": UNIT_SPEC}
    await api.create(units_path(namespace_of(number)), unit)
