"""What units cost the controller manager: while they become Ready, while they rest, and when it starts anew."""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec

from bench.api_server import AuditLog, Bare, Requests, admin, at_a_time, bare, metered_writes, writes
from bench.manager import IDENTITY, manager
from bench.program import Program
from gpu_runtime.kube.codec import lines
from localcluster.control_plane import ControlPlane, control_plane
from localcluster.places import PROJECT
from localcluster.processes import tail, wait_until

NAMESPACE = "bench"
FLOOR_NAMESPACE = "floor"
GPUS_PER_NODE = 500
AT_A_TIME = 16
"""As many requests as the controller manager has workers."""
UNITS = f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{NAMESPACE}/gpuunits"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{FLOOR_NAMESPACE}/deployments"
SERVICES = f"/api/v1/namespaces/{FLOOR_NAMESPACE}/services"
MANAGED = {("gpuunits", "status"), ("deployments", ""), ("services", ""), ("networkpolicies", "")}
"""What nobody but the controller manager writes while it converges: Kubernetes itself writes `deployments/status`, and
the benchmark creates `gpuunits`."""
RECONCILES = 'kube_reconciles_total{controller="gpu-unit"'
RESYNC = 15
"""Seconds after which each of all units is looked at again, in the last part."""

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
    audited: dict[str, int] = {}
    """The controller manager's writes by the API server's audit log."""
    metered: dict[str, int] = {}
    """The same by the API server's metrics."""
    floor_units: int = 0
    floor_cpu: float = 0
    floor_wall: float = 0

    @property
    def writes_per_unit(self) -> float:
        """By the metrics, or by the audit log if that knows of more."""
        return max(sum(self.metered.values()), sum(self.audited.values())) / self.new

    @property
    def cpu_per_unit(self) -> float:
        return self.cpu / self.new

    @property
    def floor_cpu_per_unit(self) -> float:
        return self.floor_cpu / self.floor_units


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


class Findings(msgspec.Struct):
    empty_cpu: float = 0
    empty_rss: float = 0
    """Of a controller manager that has nothing to do: the floor of its memory."""
    steps: list[Step] = []
    rest: Rest | None = None
    restart: Restart | None = None
    looked_at_again: Rest | None = None


@dataclass(frozen=True)
class Site:
    """Where it all happens."""

    plane: ControlPlane
    api: Bare
    audit: AuditLog
    folder: Path


@asynccontextmanager
async def site(units: int) -> AsyncIterator[Site]:
    """A control plane with so many GPUs and with the platform installed."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audit = AuditLog(folder, IDENTITY)
        nodes = math.ceil(units / GPUS_PER_NODE)
        with control_plane(nodes=nodes, gpus_per_node=GPUS_PER_NODE, apiserver_flags=audit.flags) as plane:
            install(plane)
            async with bare(admin(plane)) as api:
                for namespace in (NAMESPACE, FLOOR_NAMESPACE):
                    await api.create("/api/v1/namespaces", {"metadata": {"name": namespace}})
                yield Site(plane, api, audit, folder)


def install(plane: ControlPlane) -> None:
    for part in ("namespace", "priority", "crd", "rbac"):
        plane.kubectl("apply", "--server-side", "--validate=strict", "-k", str(PROJECT / "config" / part))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


async def observe(at: Site, steps: Sequence[int], rest_at: int, tell: Callable[[str], None]) -> Findings:
    found = Findings()
    with manager(at.plane, at.folder) as process:
        await asyncio.sleep(1)
        found.empty_cpu, (found.empty_rss, _) = process.cpu(), process.memory()
        for before, units in pairwise((0, *steps)):
            tell(f"{units - before} more units, {units} in all")
            step = await converge(at, process, before, units)
            await floor(at.api, step)
            found.steps.append(step)
            if units == rest_at:
                tell(f"a minute of rest at {units} units")
                await settled(process)
                found.rest = await rest(at, process, units, 60)
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
    async with asyncio.timeout(600), asyncio.TaskGroup() as tasks:
        tasks.create_task(at_a_time(AT_A_TIME, range(before, units), lambda number: _unit(at.api, number)))
        tasks.create_task(all_ready(at.api, UNITS, units))
    step.wall = time.perf_counter() - wall
    await settled(process)
    step.cpu = process.cpu() - cpu
    step.rss, step.peak_rss = process.memory()
    step.audited = named(writes(at.audit.news()))
    step.metered = named(metered_writes(at.plane, MANAGED) - metered)
    return step


async def rest(at: Site, process: Program, units: int, seconds: float) -> Rest:
    at.audit.news()
    looks, cpu, wall = process.metric(RECONCILES), process.cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    passed, spent = time.perf_counter() - wall, process.cpu() - cpu
    return Rest(units, passed, spent, process.metric(RECONCILES) - looks, named(writes(at.audit.news())))


async def restart(at: Site, process: Program, units: int) -> Restart:
    wait_until(lambda: process.metric(RECONCILES) >= units, 120, lambda: f"it is not done:\n{tail(process.log)}")
    return Restart(units, process.cpu(), *process.memory(), named(writes(at.audit.news())))


async def floor(api: Bare, step: Step) -> None:
    """The same writes and nothing else: a Deployment, a Service and two patches of a status for each of some units.

    The Deployments want no pods, so that only the writes are measured. The patches say what the statuses say already,
    and another time, so that nobody has anything to correct.
    """
    step.floor_units = min(step.new, 300)
    answer = await api.read(f"{UNITS}?limit={step.floor_units}")
    statuses = [(each["metadata"]["name"], each["status"]) for each in answer["items"]]
    cpu, wall = time.process_time(), time.perf_counter()
    await at_a_time(AT_A_TIME, statuses, lambda each: _bare_writes(api, f"{each[0]}-of-{step.units}", *each))
    step.floor_cpu, step.floor_wall = time.process_time() - cpu, time.perf_counter() - wall


async def all_ready(api: Bare, path: str, units: int) -> None:
    ready: set[str] = set()
    async with watched(api, path) as events:
        async for line in events:
            event = _EVENT.decode(line)
            if event.object.status.phase == "Ready":
                ready.add(event.object.metadata.name)
            else:
                ready.discard(event.object.metadata.name)
            if len(ready) == units:
                return


async def settled(process: Program) -> None:
    """Until nothing waits and no more Events are written."""
    before = -1.0
    while True:
        now = process.metric("kube_events_total{") + process.metric(RECONCILES)
        if now == before and process.metric("kube_queue_depth{") == 0:
            return
        before = now
        await asyncio.sleep(2)


@asynccontextmanager
async def watched(api: Bare, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with api.session.get(f"{api.url}{path}?watch=true") as answer:
        yield lines(answer.content.iter_any())


class _Meta(msgspec.Struct):
    name: str


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta
    status: _Status = _Status()


class _Event(msgspec.Struct):
    object: _Object


_EVENT = msgspec.json.Decoder(_Event)


async def _unit(api: Bare, number: int) -> None:
    metadata = {"name": f"unit-{number}"}
    await api.create(
        UNITS, {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": SPEC}
    )


async def _bare_writes(api: Bare, name: str, unit: str, status: dict[str, Any]) -> None:
    labels = {"app": name}
    metadata = {"name": name, "labels": labels}
    await api.create(DEPLOYMENTS, {"metadata": metadata, "spec": _deployment_spec(labels)})
    ports = [{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": 8080}]
    await api.create(SERVICES, {"metadata": metadata, "spec": {"selector": labels, "ports": ports}})
    for moment in ("2000-01-01T00:00:00Z", "2000-01-01T00:00:01Z"):
        await api.patch(f"{UNITS}/{unit}/status", {"status": status | {"lastSyncTime": moment}})


def _deployment_spec(labels: dict[str, str]) -> dict[str, Any]:
    amounts = {"memory": "1Gi", "nvidia.com/gpu": "1"}
    container = {
        "name": "main",
        "image": "python:3.12",
        "command": ["python"],
        "args": ["-m", "http.server", "8080"],
        "env": [{"name": "MODEL_ID", "value": "demo"}],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "resources": {"limits": amounts, "requests": amounts},
        "securityContext": {"allowPrivilegeEscalation": False},
    }
    pod = {"automountServiceAccountToken": False, "enableServiceLinks": False, "containers": [container]}
    return {
        "replicas": 0,
        "paused": True,
        "strategy": {"type": "Recreate"},
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }


def named(requests: Requests) -> dict[str, int]:
    return {f"{verb} {what}": number for (verb, what), number in sorted(requests.items())}
