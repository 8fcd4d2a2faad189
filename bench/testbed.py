"""A control plane with the platform installed, where a benchmark happens, and what there is to wait for in it."""

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from bench.kube_api import AuditLog, Bare, admin, bare
from bench.measured_process import Program
from gpu_runtime.kube.codec import lines
from localcluster.control_plane import ControlPlane, control_plane
from localcluster.paths import PROJECT

GPUS_PER_NODE = 500
UNITS = "/apis/runtime.lokiwager.io/v1alpha1/gpuunits"
"""Those of all namespaces."""
RECONCILES = 'kube_reconciles_total{controller="gpu-unit"'


@dataclass(frozen=True)
class Site:
    plane: ControlPlane
    api: Bare
    audit: AuditLog
    folder: Path
    manager: Program | None = None
    """Where one is at work."""


@asynccontextmanager
async def site(gpus: int, watched_user: str) -> AsyncIterator[Site]:
    """A control plane with so many GPUs, which writes down what that user asks of it."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audit = AuditLog(folder, watched_user)
        nodes = math.ceil(gpus / GPUS_PER_NODE)
        with control_plane(nodes=nodes, gpus_per_node=GPUS_PER_NODE, apiserver_flags=audit.flags) as plane:
            install(plane)
            async with bare(admin(plane)) as api:
                yield Site(plane, api, audit, folder)


def install(plane: ControlPlane) -> None:
    for part in ("namespace", "priority", "crd", "rbac"):
        plane.kubectl("apply", "--server-side", "--validate=strict", "-k", str(PROJECT / "config" / part))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


def units_in(namespace: str) -> str:
    return f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{namespace}/gpuunits"


async def all_ready(api: Bare, path: str, units: int) -> None:
    """The API server ends a watch now and then, and the next one begins with all that there is."""
    while not await _seen_ready(api, path, units):
        pass


async def _seen_ready(api: Bare, path: str, units: int) -> bool:
    ready: set[str] = set()
    async with watched(api, path) as events:
        async for line in events:
            event = _EVENT.decode(line)
            if event.object.status.phase == "Ready":
                ready.add(event.object.metadata.name)
            else:
                ready.discard(event.object.metadata.name)
            if len(ready) == units:
                return True
    return False


async def see_pods(
    api: Bare, namespace: str, names: Collection[str], owner: Callable[[dict[str, str]], str], seen: dict[str, float]
) -> None:
    """Until there was a pod of each. When the first one was seen, by the name of its owner, on the monotonic clock."""
    if not names:
        return
    async with watched(api, f"/api/v1/namespaces/{namespace}/pods") as events:
        async for line in events:
            name = owner(_EVENT.decode(line).object.metadata.labels)
            if name in names:
                seen.setdefault(name, monotonic())
                if len(seen) == len(names):
                    return


async def settled(process: Program) -> None:
    """Until nothing waits and no more Events are written."""
    before = -1.0
    while True:
        now = process.metric("kube_events_total{") + process.metric(RECONCILES)
        if now == before and process.metric("kube_queue_depth{") == 0:
            return
        before = now
        await asyncio.sleep(1.5)


@asynccontextmanager
async def watched(api: Bare, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with api.session.get(f"{api.url}{path}?watch=true") as answer:
        yield lines(answer.content.iter_any())


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta
    status: _Status = _Status()


class _Event(msgspec.Struct):
    object: _Object


_EVENT = msgspec.json.Decoder(_Event)
