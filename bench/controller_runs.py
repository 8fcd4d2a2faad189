"""Measures the controller manager while units become Ready, while it is idle, and after a restart."""

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
"""Kubernetes' own controllers compare every pod with every Service of its namespace. With 5,000 units in one namespace
this takes longer than everything else, and it is not the subject of this benchmark. Therefore the units are distributed
to several namespaces."""
WARM_UP_UNITS = 20
"""Units that are created before the measurement, to open connections and to run the code for the first time."""
MAX_CONCURRENT_CREATES = 16
CONTROLLER_WRITTEN_RESOURCES = {("gpuunits", "status"), ("deployments", ""), ("services", ""), ("networkpolicies", "")}
"""The resources that only the controller manager writes while units converge. Kubernetes itself writes
`deployments/status`, and the benchmark creates `gpuunits`."""
RESYNC_SECONDS = 10
"""The resync interval of the process in the last part of the benchmark."""
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
    """The cost of additional units, from their creation until all units are Ready and the process is idle."""

    units: int
    """The number of units at the end of the step."""
    new_units: int
    cpu_seconds: float = 0
    wall_seconds: float = 0
    rss_megabytes: float = 0
    peak_rss_megabytes: float = 0
    requests: int = 0
    """All requests of the controller manager, from the audit log of the API server."""
    audited_writes: dict[str, int] = {}
    """The writes of the controller manager, from the audit log."""
    metric_writes: dict[str, int] = {}
    """The writes of the controller manager, from the metrics of the API server."""
    floor: UnitCost = UnitCost(0, 0)

    @property
    def writes_per_unit(self) -> float:
        """Return the larger of the two counts."""
        return max(sum(self.metric_writes.values()), sum(self.audited_writes.values())) / self.new_units

    @property
    def cpu_seconds_per_unit(self) -> float:
        return self.cpu_seconds / self.new_units


class IdlePeriod(msgspec.Struct):
    """A period without changes of units."""

    units: int
    seconds: float
    cpu_seconds: float
    reconciles: float
    writes: dict[str, int]


class Restart(msgspec.Struct):
    """The cost of a new process until it has reconciled each unit once. All units are Ready before."""

    units: int
    cpu_seconds: float
    rss_megabytes: float
    peak_rss_megabytes: float
    writes: dict[str, int]


class ControllerRuns(msgspec.Struct):
    empty_cpu_seconds: float = 0
    empty_rss_megabytes: float = 0
    """The memory of the controller manager without units. It is the floor of the memory."""
    steps: list[ScaleStep] = []
    idle: IdlePeriod | None = None
    restart: Restart | None = None
    resync: IdlePeriod | None = None


async def run_controller_steps(bed: Testbed, steps: Sequence[int], idle_at: int) -> ControllerRuns:
    for namespace in (*map(namespace_of, range(NAMESPACE_COUNT)), FLOOR_NAMESPACE):
        await bed.kube.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    runs = ControllerRuns()
    with start_controller_manager(bed.control_plane, bed.folder) as process:
        await asyncio.sleep(1)
        runs.empty_cpu_seconds, (runs.empty_rss_megabytes, _) = process.cpu_seconds(), process.rss_megabytes()
        await create_ready_units(bed.kube, 0, WARM_UP_UNITS)
        for before, units in pairwise((0, *steps)):
            log_progress(f"{units - before} more units, {units} in total")
            step = await run_step(bed, process, before, units)
            step.floor = await measure_unit_writes(bed.kube, min(step.new_units, 300), f"of-{units}")
            runs.steps.append(step)
            if units == idle_at:
                log_progress(f"{IDLE_SECONDS} s idle at {units} units")
                await wait_until_idle(process)
                runs.idle = await run_idle(bed, process, units, IDLE_SECONDS)
    log_progress(f"new process at {steps[-1]} units")
    with start_controller_manager(bed.control_plane, bed.folder, resyncSeconds=RESYNC_SECONDS) as process:
        runs.restart = await run_restart(bed, process, steps[-1])
        runs.resync = await run_idle(bed, process, steps[-1], 2 * RESYNC_SECONDS)
    return runs


async def run_step(bed: Testbed, process: MeasuredProcess, before: int, units: int) -> ScaleStep:
    step = ScaleStep(units, units - before)
    await wait_until_idle(process)
    writes_before = writes_from_metrics(bed.control_plane, CONTROLLER_WRITTEN_RESOURCES)
    bed.audit_log.read_new()
    cpu, wall = process.cpu_seconds(), time.perf_counter()
    await create_ready_units(bed.kube, WARM_UP_UNITS + before, WARM_UP_UNITS + units)
    step.wall_seconds = time.perf_counter() - wall
    await wait_until_idle(process)
    step.cpu_seconds = process.cpu_seconds() - cpu
    step.rss_megabytes, step.peak_rss_megabytes = process.rss_megabytes()
    audited = bed.audit_log.read_new()
    step.requests, step.audited_writes = audited.total(), counts_by_name(select_writes(audited))
    step.metric_writes = counts_by_name(
        writes_from_metrics(bed.control_plane, CONTROLLER_WRITTEN_RESOURCES) - writes_before
    )
    return step


async def create_ready_units(api: RawKubeClient, before: int, units: int) -> None:
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        tasks.create_task(
            for_each_concurrently(
                MAX_CONCURRENT_CREATES, range(before, units), lambda number: _create_unit(api, number)
            )
        )
        tasks.create_task(wait_until_all_ready(api, ALL_UNITS_PATH, units))


async def run_idle(bed: Testbed, process: MeasuredProcess, units: int, seconds: float) -> IdlePeriod:
    bed.audit_log.read_new()
    reconciles, cpu, wall = process.metric_sum(RECONCILES_METRIC), process.cpu_seconds(), time.perf_counter()
    await asyncio.sleep(seconds)
    elapsed, spent = time.perf_counter() - wall, process.cpu_seconds() - cpu
    return IdlePeriod(
        units,
        elapsed,
        spent,
        process.metric_sum(RECONCILES_METRIC) - reconciles,
        counts_by_name(select_writes(bed.audit_log.read_new())),
    )


async def run_restart(bed: Testbed, process: MeasuredProcess, units: int) -> Restart:
    wait_until(
        lambda: process.metric_sum(RECONCILES_METRIC) >= WARM_UP_UNITS + units,
        120,
        lambda: f"the new process has not reconciled all units:\n{tail_log(process.log_path)}",
    )
    return Restart(
        units, process.cpu_seconds(), *process.rss_megabytes(), counts_by_name(select_writes(bed.audit_log.read_new()))
    )


def namespace_of(number: int) -> str:
    return f"bench-{number % NAMESPACE_COUNT}"


async def _create_unit(api: RawKubeClient, number: int) -> None:
    metadata = {"name": f"unit-{number}", "namespace": namespace_of(number)}
    unit = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": UNIT_SPEC}
    await api.create(units_path(namespace_of(number)), unit)
