"""Runs a control plane with the installed platform for a benchmark, and waits for conditions of its objects."""

import asyncio
import math
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Collection
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

import msgspec

from bench.kube_api import AuditLog, RawKubeClient, admin_access, raw_kube_client
from bench.measured_process import MeasuredProcess
from gpu_runtime.kube.codec import split_lines
from localcluster.control_plane import ControlPlane, temporary_control_plane
from localcluster.paths import PROJECT_ROOT

GPUS_PER_NODE = 500
ALL_UNITS_PATH = "/apis/runtime.lokiwager.io/v1alpha1/gpuunits"
"""The units of all namespaces."""
RECONCILES_METRIC = 'controller_runtime_reconcile_total{controller="gpu-unit"'


@dataclass(frozen=True)
class Testbed:
    control_plane: ControlPlane
    kube: RawKubeClient
    audit_log: AuditLog
    folder: Path
    controller_manager: MeasuredProcess | None = None
    """The controller manager, if one runs."""


@asynccontextmanager
async def testbed(gpus: int, watched_user: str) -> AsyncIterator[Testbed]:
    """Run a control plane with this number of GPUs and an audit log of this user's requests."""
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        audit = AuditLog(folder, watched_user)
        nodes = math.ceil(gpus / GPUS_PER_NODE)
        with temporary_control_plane(
            nodes=nodes, gpus_per_node=GPUS_PER_NODE, apiserver_flags=audit.apiserver_flags
        ) as plane:
            install_platform(plane)
            async with raw_kube_client(admin_access(plane)) as api:
                yield Testbed(plane, api, audit, folder)


def install_platform(plane: ControlPlane) -> None:
    for part in ("namespace", "priority", "crd", "rbac"):
        plane.kubectl("apply", "--server-side", "--validate=strict", "-k", str(PROJECT_ROOT / "config" / part))
    plane.kubectl("wait", "--for=condition=Established", "--timeout=30s", "crd", "--all")


def units_path(namespace: str) -> str:
    return f"/apis/runtime.lokiwager.io/v1alpha1/namespaces/{namespace}/gpuunits"


async def wait_until_all_ready(api: RawKubeClient, path: str, units: int) -> None:
    """Wait until this number of units is Ready. When the API server closes the watch, the next watch starts with all
    existing units."""
    while not await _watch_until_all_ready(api, path, units):
        pass


async def _watch_until_all_ready(api: RawKubeClient, path: str, units: int) -> bool:
    ready: set[str] = set()
    async with watch_lines(api, path) as events:
        async for line in events:
            event = _WATCH_EVENT_DECODER.decode(line)
            if event.object.status.phase == "Ready":
                ready.add(event.object.metadata.name)
            else:
                ready.discard(event.object.metadata.name)
            if len(ready) == units:
                return True
    return False


async def record_first_pods(
    api: RawKubeClient,
    namespace: str,
    names: Collection[str],
    owner: Callable[[dict[str, str]], str],
    seen_at: dict[str, float],
) -> None:
    """Wait until each owner has a pod. Store the time of the first pod of each owner in `seen_at` (monotonic clock)."""
    if not names:
        return
    async with watch_lines(api, f"/api/v1/namespaces/{namespace}/pods") as events:
        async for line in events:
            name = owner(_WATCH_EVENT_DECODER.decode(line).object.metadata.labels)
            if name in names:
                seen_at.setdefault(name, monotonic())
                if len(seen_at) == len(names):
                    return


async def wait_until(condition: Callable[[], Awaitable[bool]], timeout_seconds: float = 60) -> None:
    async with asyncio.timeout(timeout_seconds):
        while not await condition():  # noqa: ASYNC110 - the condition is the state of another process
            await asyncio.sleep(0.05)


async def wait_until_idle(process: MeasuredProcess) -> None:
    """Wait until the work queues are empty and neither reconciles nor Events are added."""
    previous = -1.0
    while True:
        activity = process.metric_sum("gpu_runtime_kubernetes_events_total{") + process.metric_sum(RECONCILES_METRIC)
        if activity == previous and process.metric_sum("workqueue_depth{") == 0:
            return
        previous = activity
        await asyncio.sleep(1.5)


@asynccontextmanager
async def watch_lines(api: RawKubeClient, path: str) -> AsyncIterator[AsyncIterator[bytes]]:
    async with api.session.get(f"{api.url}{path}?watch=true") as response:
        yield split_lines(response.content.iter_any())


class _Meta(msgspec.Struct):
    name: str
    labels: dict[str, str] = {}


class _Status(msgspec.Struct, frozen=True):
    phase: str = ""


class _Object(msgspec.Struct):
    metadata: _Meta
    status: _Status = _Status()


class _WatchEvent(msgspec.Struct):
    object: _Object


_WATCH_EVENT_DECODER = msgspec.json.Decoder(_WatchEvent)
