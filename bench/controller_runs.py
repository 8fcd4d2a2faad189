"""What units cost the controller manager: while they become Ready, while they rest, and when it starts anew."""

import asyncio
import time
from collections.abc import Sequence
from itertools import pairwise

import msgspec

from bench.floors.unit_writes import NAMESPACE as FLOOR_NAMESPACE
from bench.floors.unit_writes import Spent, write_bare
from bench.kube_api import Bare, at_a_time, metered_writes, named, writes
from bench.measured_process import Program
from bench.report import tell
from bench.start_controller_manager import manager
from bench.testbed import RECONCILES, UNITS, Site, all_ready, settled, units_in
from localcluster.supervisor_client import tail, wait_until

NAMESPACES = 10
"""Kubernetes' own controllers compare every pod with every Service of its namespace, which at 5,000 in one takes them
longer than all else. That is not what is measured here, so the units are spread."""
WARM_UP = 20
"""Units before those that count: connections are opened, and code runs for the first time."""
AT_A_TIME = 16
MANAGED = {("gpuunits", "status"), ("deployments", ""), ("services", ""), ("networkpolicies", "")}
"""What nobody but the controller manager writes while it converges: Kubernetes itself writes `deployments/status`, and
the benchmark creates `gpuunits`."""
RESYNC = 10
"""Seconds after which each of all units is looked at again, in the last part."""
REST = 20

SPEC = {
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


class Step(msgspec.Struct):
    """More units, from their creation until all are Ready and nothing moves. Seconds, MB and requests."""

    units: int
    """So many there are at the end of the step."""
    new: int
    cpu: float = 0
    wall: float = 0
    rss: float = 0
    peak_rss: float = 0
    requests: int = 0
    """All of the controller manager's, by the API server's audit log."""
    audited: dict[str, int] = {}
    """Its writes by the same."""
    metered: dict[str, int] = {}
    """Its writes by the API server's metrics."""
    floor: Spent = Spent(0, 0)

    @property
    def writes_per_unit(self) -> float:
        """By the metrics, or by the audit log if that knows of more."""
        return max(sum(self.metered.values()), sum(self.audited.values())) / self.new

    @property
    def cpu_per_unit(self) -> float:
        return self.cpu / self.new


class Rest(msgspec.Struct):
    """Some time in which nothing changes."""

    units: int
    seconds: float
    cpu: float
    reconciles: float
    writes: dict[str, int]


class Restart(msgspec.Struct):
    """A new process that finds all units Ready, until it has looked at each of them."""

    units: int
    cpu: float
    rss: float
    peak_rss: float
    writes: dict[str, int]


class Convergence(msgspec.Struct):
    empty_cpu: float = 0
    empty_rss: float = 0
    """Of a controller manager that has nothing to do: the floor of its memory."""
    steps: list[Step] = []
    rest: Rest | None = None
    restart: Restart | None = None
    looked_at_again: Rest | None = None


async def observe(at: Site, steps: Sequence[int], rest_at: int) -> Convergence:
    for namespace in (*map(namespace_of, range(NAMESPACES)), FLOOR_NAMESPACE):
        await at.api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
    found = Convergence()
    with manager(at.plane, at.folder) as process:
        await asyncio.sleep(1)
        found.empty_cpu, (found.empty_rss, _) = process.cpu(), process.memory()
        await make_ready(at.api, 0, WARM_UP)
        for before, units in pairwise((0, *steps)):
            tell(f"{units - before} more units, {units} in all")
            step = await converge(at, process, before, units)
            step.floor = await write_bare(at.api, min(step.new, 300), f"of-{units}")
            found.steps.append(step)
            if units == rest_at:
                tell(f"{REST} s of rest at {units} units")
                await settled(process)
                found.rest = await rest(at, process, units, REST)
    tell(f"another process at {steps[-1]} units")
    with manager(at.plane, at.folder, resyncSeconds=RESYNC) as process:
        found.restart = await restart(at, process, steps[-1])
        found.looked_at_again = await rest(at, process, steps[-1], 2 * RESYNC)
    return found


async def converge(at: Site, process: Program, before: int, units: int) -> Step:
    step = Step(units, units - before)
    await settled(process)
    metered = metered_writes(at.plane, MANAGED)
    at.audit.news()
    cpu, wall = process.cpu(), time.perf_counter()
    await make_ready(at.api, WARM_UP + before, WARM_UP + units)
    step.wall = time.perf_counter() - wall
    await settled(process)
    step.cpu = process.cpu() - cpu
    step.rss, step.peak_rss = process.memory()
    asked = at.audit.news()
    step.requests, step.audited = asked.total(), named(writes(asked))
    step.metered = named(metered_writes(at.plane, MANAGED) - metered)
    return step


async def make_ready(api: Bare, before: int, units: int) -> None:
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        tasks.create_task(at_a_time(AT_A_TIME, range(before, units), lambda number: _unit(api, number)))
        tasks.create_task(all_ready(api, UNITS, units))


async def rest(at: Site, process: Program, units: int, seconds: float) -> Rest:
    at.audit.news()
    looks, cpu, wall = process.metric(RECONCILES), process.cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    passed, spent = time.perf_counter() - wall, process.cpu() - cpu
    return Rest(units, passed, spent, process.metric(RECONCILES) - looks, named(writes(at.audit.news())))


async def restart(at: Site, process: Program, units: int) -> Restart:
    wait_until(
        lambda: process.metric(RECONCILES) >= WARM_UP + units, 120, lambda: f"it is not done:\n{tail(process.log)}"
    )
    return Restart(units, process.cpu(), *process.memory(), named(writes(at.audit.news())))


def namespace_of(number: int) -> str:
    return f"bench-{number % NAMESPACES}"


async def _unit(api: Bare, number: int) -> None:
    metadata = {"name": f"unit-{number}", "namespace": namespace_of(number)}
    unit = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": SPEC}
    await api.create(units_in(namespace_of(number)), unit)
