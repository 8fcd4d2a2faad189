"""So many units, from their creation until all are Ready and nothing moves, with a control plane of their own."""

import asyncio
import math
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import msgspec

from bench.api_server import AuditLog, Bare, Requests, at_a_time, bare, metered_writes, writes
from bench.manager import IDENTITY, Manager, manager
from gpu_runtime.kube.codec import lines
from localcluster.control_plane import ControlPlane, control_plane
from localcluster.places import PROJECT

NAMESPACE = "bench"
GPUS_PER_NODE = 500
AT_A_TIME = 16
"""As many requests as the controller manager has workers."""
UNITS = f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{NAMESPACE}/gpuunits"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"
SERVICES = f"/api/v1/namespaces/{NAMESPACE}/services"

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


class Phases(msgspec.Struct):
    """What one run found out. Seconds of CPU, seconds, MB and requests."""

    units: int
    empty_rss: float = 0
    """Of a controller manager that has nothing to do: the floor of its memory."""
    cpu: float = 0
    wall: float = 0
    rss: float = 0
    peak_rss: float = 0
    audited: dict[str, int] = {}
    metered: dict[str, int] = {}
    reconciles: float = 0
    restart_cpu: float = 0
    """From the start of a process that finds all of them Ready until it has looked at each."""
    restart_rss: float = 0
    restart_peak_rss: float = 0
    restart_writes: dict[str, int] = {}
    idle_seconds: float = 0
    idle_cpu: float = 0
    idle_writes: dict[str, int] = {}
    idle_reconciles: float = 0
    floor_cpu: float = 0
    floor_wall: float = 0

    @property
    def writes_per_unit(self) -> float:
        """By the API server's metrics, or by its audit log if that knows of more."""
        return max(sum(self.metered.values()), sum(self.audited.values())) / self.units


async def observe(units: int, idle: float) -> Phases:
    """Converge, restart, rest for some seconds, and at last do the bare writes."""
    found = Phases(units)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audit = AuditLog(folder, IDENTITY)
        nodes = math.ceil(units / GPUS_PER_NODE)
        with control_plane(nodes=nodes, gpus_per_node=GPUS_PER_NODE, apiserver_flags=audit.flags) as plane:
            install(plane)
            async with bare(plane) as api:
                await api.create("/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
                with manager(plane, folder) as process:
                    await converge(found, plane, api, process, audit)
                # Every unit is looked at again in every such pause, which must not lead to a write either.
                with manager(plane, folder, resyncSeconds=max(idle / 2, 10)) as process:
                    await restart(found, process, audit)
                    await rest(found, process, audit, idle)
                await floor(found, api)
    return found


def install(plane: ControlPlane) -> None:
    for part in ("namespace", "priority", "crd", "rbac"):
        plane.kubectl("apply", "--server-side", "--validate=strict", "-k", str(PROJECT / "config" / part))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


async def converge(found: Phases, plane: ControlPlane, api: Bare, process: Manager, audit: AuditLog) -> None:
    await asyncio.sleep(1)
    found.empty_rss, _ = process.memory()
    before = metered_writes(plane)
    audit.news()
    cpu, wall = process.cpu(), time.perf_counter()
    async with asyncio.timeout(240), asyncio.TaskGroup() as tasks:
        tasks.create_task(at_a_time(AT_A_TIME, _names("unit", found.units), lambda name: _unit(api, name)))
        tasks.create_task(all_ready(api, found.units))
    found.wall = time.perf_counter() - wall
    await settled(process)
    found.cpu = process.cpu() - cpu
    found.rss, found.peak_rss = process.memory()
    found.audited = _named(writes(audit.news()))
    found.metered = _named(metered_writes(plane) - before)
    found.reconciles = process.metric("kube_reconciles_total{")


async def restart(found: Phases, process: Manager, audit: AuditLog) -> None:
    while process.metric('kube_reconciles_total{controller="gpu-unit"') < found.units:
        await asyncio.sleep(0.1)
    await settled(process)
    found.restart_cpu = process.cpu()
    found.restart_rss, found.restart_peak_rss = process.memory()
    found.restart_writes = _named(writes(audit.news()))


async def rest(found: Phases, process: Manager, audit: AuditLog, seconds: float) -> None:
    looks = process.metric("kube_reconciles_total{")
    cpu, wall = process.cpu(), time.perf_counter()
    await asyncio.sleep(seconds)
    found.idle_seconds, found.idle_cpu = time.perf_counter() - wall, process.cpu() - cpu
    found.idle_writes = _named(writes(audit.news()))
    found.idle_reconciles = process.metric("kube_reconciles_total{") - looks


async def floor(found: Phases, api: Bare) -> None:
    """The same writes and nothing else: a Deployment, a Service and two patches of a status for every unit.

    The Deployments want no pods, so that only the writes are measured, and the controller manager has ended.
    """
    cpu, wall = time.process_time(), time.perf_counter()
    await at_a_time(AT_A_TIME, range_of(found.units), lambda number: _bare_writes(api, number))
    found.floor_cpu, found.floor_wall = time.process_time() - cpu, time.perf_counter() - wall


async def all_ready(api: Bare, units: int) -> None:
    ready: set[str] = set()
    async with _watched(api) as events:
        async for line in events:
            event = _EVENT.decode(line)
            if event.object.status.phase == "Ready":
                ready.add(event.object.metadata.name)
            else:
                ready.discard(event.object.metadata.name)
            if len(ready) == units:
                return


async def settled(process: Manager) -> None:
    """Until nothing waits and no more Events are written."""
    before = -1.0
    while True:
        now = process.metric("kube_events_total{") + process.metric("kube_reconciles_total{")
        if now == before and process.metric("kube_queue_depth{") == 0:
            return
        before = now
        await asyncio.sleep(2)


@asynccontextmanager
async def _watched(api: Bare) -> AsyncIterator[AsyncIterator[bytes]]:
    async with api.session.get(f"{api.url}{UNITS}?watch=true") as answer:
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


async def _unit(api: Bare, name: str) -> None:
    unit = {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": {"name": name}, "spec": SPEC}
    await api.create(UNITS, unit)


async def _bare_writes(api: Bare, number: str) -> None:
    labels = {"app": f"floor-{number}"}
    metadata = {"name": f"floor-{number}", "labels": labels}
    await api.create(DEPLOYMENTS, {"metadata": metadata, "spec": _deployment_spec(labels)})
    ports = [{"name": "http", "port": 8080, "protocol": "TCP", "targetPort": 8080}]
    await api.create(SERVICES, {"metadata": metadata, "spec": {"selector": labels, "ports": ports}})
    for phase in ("Progressing", "Ready"):
        await api.patch(f"{UNITS}/unit-{number}/status", {"status": _status(phase)})


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


def _status(phase: str) -> dict[str, Any]:
    moment = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
    condition = {
        "type": "Ready",
        "status": "True" if phase == "Ready" else "False",
        "reason": f"Unit{phase}",
        "message": "a bare write",
        "lastTransitionTime": moment,
    }
    return {"phase": phase, "observedGeneration": 1, "lastSyncTime": moment, "conditions": [condition]}


def _names(prefix: str, count: int) -> list[str]:
    return [f"{prefix}-{number}" for number in range_of(count)]


def range_of(count: int) -> list[str]:
    return [str(number) for number in range(count)]


def _named(requests: Requests) -> dict[str, int]:
    return {f"{verb} {what}": number for (verb, what), number in sorted(requests.items())}
