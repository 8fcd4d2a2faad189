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

from bench.kube_api import RawKubeClient, for_each_concurrently
from bench.measured_process import DIE_WITH_PARENT, MeasuredProcess, cpu_seconds_of, start_process
from bench.result_store_runs import STORED_METRIC, start_result_store
from bench.start_controller_manager import start_controller_manager
from bench.start_runtime_api import API_TOKEN, RuntimeAPIReplica, start_runtime_api
from bench.testbed import testbed, units_path
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsServer, temporary_nats_server

FUNCTION_CONCURRENCY = 32
MAX_CONCURRENT_STARTS = 8
ACTIVATOR_USER = "system:serviceaccount:runtime-system:activator"

ECHO_FUNCTION_SOURCE = """
from gpu_runtime.framework import handler, serve

@handler
async def run(request):
    return request.payload

serve()
"""


@dataclass(frozen=True)
class ServerlessStack:
    control_plane: ControlPlane
    kube: RawKubeClient
    nats: NatsServer
    nats_url: str
    """Of NATS, with the account that all processes share."""
    runtime_api: RuntimeAPIReplica
    activator: MeasuredProcess
    result_store: MeasuredProcess
    controller_manager: MeasuredProcess
    folder: Path

    def stored_count(self) -> int:
        return int(self.result_store.metric_sum(STORED_METRIC))

    async def wait_until_stored(self, count: int, within: float) -> float:
        """When so many results were stored, on the monotonic clock, a few milliseconds after it was so."""
        ends = time.monotonic() + within
        while self.stored_count() < count:
            if time.monotonic() > ends:
                raise RuntimeError(f"{self.stored_count()} of {count} results were stored")
            await asyncio.sleep(0.02)
        return time.monotonic()

    def cpu_seconds(self) -> dict[str, float]:
        """Seconds of each process of the platform since it started."""
        programs = {
            "activator": self.activator,
            "result-store": self.result_store,
            "controller-manager": self.controller_manager,
        }
        spent = {name: each.cpu_seconds() for name, each in programs.items()}
        spent["runtime-api"] = self.runtime_api.process.cpu_seconds()
        spent["nats-server"] = cpu_seconds_of(self.nats.processes.get("nats").pid or 0)
        return spent


@asynccontextmanager
async def serverless_stack() -> AsyncIterator[ServerlessStack]:
    async with testbed(1, ACTIVATOR_USER) as at:
        with ExitStack() as running:
            server = running.enter_context(temporary_nats_server())
            url = server.create_account().url
            nats = {"nats": {"urls": [url]}}
            controller = running.enter_context(start_controller_manager(at.control_plane, at.folder))
            api = running.enter_context(start_runtime_api(at.control_plane, at.folder, "runtime-api", **nats))
            store = running.enter_context(start_result_store(at.folder, url))
            activator = running.enter_context(_start_activator(at.control_plane, at.folder, nats, api.url))
            yield ServerlessStack(at.control_plane, at.kube, server, url, api, activator, store, controller, at.folder)


async def create_functions(at: ServerlessStack, names: Sequence[str], *, running: bool) -> None:
    await for_each_concurrently(
        8, names, lambda name: at.kube.create(units_path("runtime-instance"), function_manifest(name, running=running))
    )


def function_manifest(name: str, *, running: bool) -> dict[str, Any]:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": 1, "concurrency": FUNCTION_CONCURRENCY}
    spec = {"specName": "bench", "image": "gpu-runtime:local", "running": running, "serverless": serverless}
    spec["template"] = {"command": ["python", "-c"], "args": [ECHO_FUNCTION_SOURCE]}
    metadata = {"name": name, "namespace": "runtime-instance"}
    return {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class WorkerProcesses:
    sidecar: MeasuredProcess
    framework: "subprocess.Popen[bytes]"
    exit_stack: ExitStack


@contextmanager
def start_workers(at: ServerlessStack, functions: Sequence[str]) -> Iterator[list[WorkerProcesses]]:
    """A worker each, warm. Some of them start and end at once, since each waits mostly for itself."""
    with ThreadPoolExecutor(MAX_CONCURRENT_STARTS) as pool:
        started = list(pool.map(lambda name: _start_worker(at, name), functions))
        try:
            yield started
        finally:
            list(pool.map(lambda each: each.running.close(), started))


def worker_cpu_seconds(running: Sequence[WorkerProcesses]) -> dict[str, float]:
    """Seconds since they started."""
    return {
        "worker-sidecar": sum(each.sidecar.cpu_seconds() for each in running),
        "framework": sum(cpu_seconds_of(each.framework.pid) for each in running),
    }


def _start_worker(at: ServerlessStack, name: str) -> WorkerProcesses:
    with ExitStack() as running:
        framework = running.enter_context(_start_framework(at.folder, name))
        sidecar = running.enter_context(_start_sidecar(at, name))
        return WorkerProcesses(sidecar, framework, running.pop_all())


@contextmanager
def _start_activator(
    kubernetes: ControlPlane, folder: Path, nats: dict[str, Any], api: str
) -> Iterator[MeasuredProcess]:
    token = folder / "token"
    token.write_text(API_TOKEN)
    settings = nats | {
        "kubernetes": {"kubeconfig": str(kubernetes.kubeconfig_for("activator", ACTIVATOR_USER))},
        "runtimeAPI": {"url": api, "tokenFile": str(token)},
    }
    with start_process("activator", folder, settings, _is_leader) as started:
        yield started


@contextmanager
def _start_framework(folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    variables = {"GPU_RUNTIME_SOCKET": _socket_path(folder, name), "GPU_RUNTIME_CONCURRENCY": str(FUNCTION_CONCURRENCY)}
    with (folder / f"framework-{name}.log").open("ab") as said:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, "-c", ECHO_FUNCTION_SOURCE], env=variables, stderr=said
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _start_sidecar(at: ServerlessStack, name: str) -> Iterator[MeasuredProcess]:
    settings = {
        "nats": {"urls": [at.nats_url]},
        "requestID": name,
        "worker": name,
        "namespace": "runtime-instance",
        "concurrency": FUNCTION_CONCURRENCY,
        "framework": {"socketPath": _socket_path(at.folder, name)},
    }
    with start_process("worker-sidecar", at.folder, settings, MeasuredProcess.is_ready, f"sidecar-{name}") as started:
        yield started


def _socket_path(folder: Path, name: str) -> str:
    return str(folder / f"{name}.sock")


def _is_leader(started: MeasuredProcess) -> bool:
    return started.is_ready() and started.metric_sum("kube_leading{") == 1
