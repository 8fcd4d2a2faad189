"""The serverless plane on this machine: every process of it as a process, and functions whose workers are processes.

Only Kubernetes' nodes are simulated, so a worker's pod holds no container: its sidecar and the user's framework run
here, beside the rest.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.kube_api import Bare, at_a_time
from bench.measured_process import TIE, Program, cpu_of, program
from bench.result_store_runs import STORED, result_store
from bench.start_controller_manager import manager
from bench.start_runtime_api import TOKEN, Replica, runtime_api
from bench.testbed import site, units_in
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsServer, nats_server

CONCURRENCY = 32
STARTING_AT_ONCE = 8
ACTIVATOR = "system:serviceaccount:runtime-system:activator"

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
    runtime_api: Replica
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
        spent["runtime-api"] = self.runtime_api.program.cpu()
        spent["nats-server"] = cpu_of(self.nats.processes.get("nats").pid or 0)
        return spent


@asynccontextmanager
async def plane() -> AsyncIterator[Plane]:
    async with site(1, ACTIVATOR) as at:
        with ExitStack() as running:
            server = running.enter_context(nats_server())
            url = server.account().url
            nats = {"nats": {"urls": [url]}}
            controller = running.enter_context(manager(at.plane, at.folder))
            api = running.enter_context(runtime_api(at.plane, at.folder, "runtime-api", **nats))
            store = running.enter_context(result_store(at.folder, url))
            activator = running.enter_context(_activator(at.plane, at.folder, nats, api.url))
            yield Plane(at.plane, at.api, server, url, api, activator, store, controller, at.folder)


async def make_functions(at: Plane, names: Sequence[str], *, running: bool) -> None:
    await at_a_time(8, names, lambda name: at.api.create(units_in("runtime-instance"), function(name, running=running)))


def function(name: str, *, running: bool) -> dict[str, Any]:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 1, "concurrency": CONCURRENCY}
    spec = {"specName": "bench", "image": "gpu-runtime:local", "running": running, "serverless": serverless}
    spec["template"] = {"command": ["python", "-c"], "args": [ECHO]}
    metadata = {"name": name, "namespace": "runtime-instance"}
    return {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class Worker:
    sidecar: Program
    framework: "subprocess.Popen[bytes]"
    running: ExitStack


@contextmanager
def workers(at: Plane, functions: Sequence[str]) -> Iterator[list[Worker]]:
    """A worker each, warm. Some of them start and end at once, since each waits mostly for itself."""
    with ThreadPoolExecutor(STARTING_AT_ONCE) as pool:
        started = list(pool.map(lambda name: _worker(at, name), functions))
        try:
            yield started
        finally:
            list(pool.map(lambda each: each.running.close(), started))


def cpu_of_workers(running: Sequence[Worker]) -> dict[str, float]:
    """Seconds since they started."""
    return {
        "worker-sidecar": sum(each.sidecar.cpu() for each in running),
        "framework": sum(cpu_of(each.framework.pid) for each in running),
    }


def _worker(at: Plane, name: str) -> Worker:
    with ExitStack() as running:
        framework = running.enter_context(_framework(at.folder, name))
        sidecar = running.enter_context(_sidecar(at, name))
        return Worker(sidecar, framework, running.pop_all())


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
    with (folder / f"framework-{name}.log").open("ab") as said:
        process = subprocess.Popen([*TIE, sys.executable, "-c", ECHO], env=variables, stderr=said)
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
