"""The serverless plane on this machine: every process of it as a process, and functions whose workers are processes.

Only Kubernetes' nodes are simulated, so a worker's pod holds no container: its sidecar and the user's framework run
here, beside the rest.
"""

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.api_server import Bare, admin, bare
from bench.convergence import install
from bench.manager import manager
from bench.program import Program, cpu_of, program
from bench.runtime_api import TOKEN, Replica, runtime_api
from localcluster.control_plane import ControlPlane, control_plane
from localcluster.nats import NatsServer, nats_server

UNITS = "/apis/runtime.lokiwager.io/v1alpha1/namespaces/runtime-instance/gpuunits"
PODS = "/api/v1/namespaces/runtime-instance/pods"
CONCURRENCY = 32
ACTIVATOR = "system:serviceaccount:runtime-system:activator"
STORED = "result_store_results_stored_total"

ECHO = """
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    return request.payload

serve()
"""


@dataclass(frozen=True)
class Plane:
    kubernetes: ControlPlane
    api: Bare
    nats: NatsServer
    url: str
    """Of NATS, with the account that all processes share."""
    replicas: list[Replica]
    activator: Program
    store: Program
    manager: Program
    folder: Path

    def stored(self) -> int:
        return int(self.store.metric(STORED))

    async def all_stored(self, count: int, within: float) -> float:
        """When so many results were stored, on the monotonic clock, a few milliseconds after it was so."""
        ends = time.monotonic() + within
        while self.stored() < count:
            if time.monotonic() > ends:
                raise RuntimeError(f"{self.stored()} of {count} results were stored")
            await asyncio.sleep(0.02)
        return time.monotonic()

    def cpu(self) -> dict[str, float]:
        """Seconds of each process of the platform since it started."""
        programs = {"activator": self.activator, "result-store": self.store, "controller-manager": self.manager}
        spent = {name: each.cpu() for name, each in programs.items()}
        spent["runtime-api"] = sum(each.program.cpu() for each in self.replicas)
        spent["nats-server"] = cpu_of(self.nats.processes.get("nats").pid or 0)
        return spent


@asynccontextmanager
async def plane(replicas: int = 1) -> AsyncIterator[Plane]:
    with tempfile.TemporaryDirectory() as temporary, ExitStack() as running:
        folder = Path(temporary)
        kubernetes = running.enter_context(control_plane(nodes=4, gpus_per_node=8))
        install(kubernetes)
        server = running.enter_context(nats_server())
        url = server.account().url
        nats = {"nats": {"urls": [url]}}
        controller = running.enter_context(manager(kubernetes, folder))
        api = [running.enter_context(runtime_api(kubernetes, folder, f"api-{n}", **nats)) for n in range(replicas)]
        store = running.enter_context(_result_store(folder, nats))
        activator = running.enter_context(_activator(kubernetes, folder, nats, api[0].url))
        async with bare(admin(kubernetes)) as client:
            yield Plane(kubernetes, client, server, url, api, activator, store, controller, folder)


def function(name: str, *, running: bool) -> dict[str, Any]:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 1, "concurrency": CONCURRENCY}
    spec = {"specName": "bench", "image": "gpu-runtime:local", "running": running, "serverless": serverless}
    spec["template"] = {"command": ["python", "-c"], "args": [ECHO]}
    metadata = {"name": name, "namespace": "runtime-instance"}
    return {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}


@contextmanager
def workers(at: Plane, functions: Sequence[str]) -> Iterator[dict[str, float]]:
    """A worker each, warm. Gives the CPU seconds of sidecars and frameworks once the block has ended."""
    spent: dict[str, float] = {}
    with ExitStack() as running:
        frameworks, sidecars = [], []
        for name in functions:
            frameworks.append(running.enter_context(_framework(at.folder, name)))
            sidecars.append(running.enter_context(_sidecar(at, name)))
        yield spent
        spent["worker-sidecar"] = sum(each.cpu() for each in sidecars)
        spent["framework"] = sum(cpu_of(each.pid) for each in frameworks)


async def pod_time(at: Plane, name: str) -> float:
    """When there is a pod of a worker of the function, on the monotonic clock."""
    while True:
        for pod in (await at.api.read(PODS))["items"]:
            if pod["metadata"]["labels"].get("runtime.lokiwager.io/unit", "").startswith(f"{name}-"):
                return time.monotonic()
        await asyncio.sleep(0.005)


@contextmanager
def _result_store(folder: Path, nats: dict[str, Any]) -> Iterator[Program]:
    settings = nats | {"database": {"path": str(folder / "results.db")}}
    with program("result-store", folder, settings, Program.is_ready) as started:
        yield started


@contextmanager
def _activator(kubernetes: ControlPlane, folder: Path, nats: dict[str, Any], api: str) -> Iterator[Program]:
    token = folder / "token"
    token.write_text(TOKEN)
    settings = nats | {
        "kubernetes": {"kubeconfig": str(kubernetes.kubeconfig_for("activator", ACTIVATOR))},
        "api": {"url": api, "tokenFile": str(token)},
    }
    with program("activator", folder, settings, _leads) as started:
        yield started


@contextmanager
def _framework(folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    variables = {"GPU_RUNTIME_SOCKET": _socket(folder, name), "GPU_RUNTIME_CONCURRENCY": str(CONCURRENCY)}
    process = subprocess.Popen([sys.executable, "-c", ECHO], env=variables)
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _sidecar(at: Plane, name: str) -> Iterator[Program]:
    settings = {
        "nats": {"urls": [at.url]},
        "requestID": name,
        "worker": name,
        "namespace": "runtime-instance",
        "concurrency": CONCURRENCY,
        "framework": {"socketPath": _socket(at.folder, name)},
    }
    with program("worker-sidecar", at.folder, settings, Program.is_ready, f"sidecar-{name}") as started:
        yield started


def _socket(folder: Path, name: str) -> str:
    return str(folder / f"{name}.sock")


def _leads(started: Program) -> bool:
    return started.is_ready() and started.metric("kube_leading{") == 1
