"""Runs all processes of the serverless platform on this machine, and the worker processes of functions.

Only the Kubernetes nodes are simulated. The pod of a worker has no containers. Its sidecar and framework run as
processes of this machine.
"""

import asyncio
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bench.benchmark_keys import ticket_section
from bench.kube_api import RawKubeClient, for_each_concurrently
from bench.measured_process import DIE_WITH_PARENT, MeasuredProcess, cpu_seconds_of, start_process
from bench.result_store_runs import STORED_METRIC, start_result_store
from bench.start_controller_manager import start_controller_manager
from bench.start_runtime_api import API_TOKEN, RuntimeAPIReplica, start_runtime_api
from bench.testbed import testbed, units_path
from gpu_runtime.contract.crd.well_known import GROUP, SYSTEM_NAMESPACE, VERSION, function_queue_name
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsServer, temporary_nats_server

FUNCTION_CONCURRENCY = 32
MAX_CONCURRENT_STARTS = 8
ACTIVATOR_USER = "system:serviceaccount:runtime-system:activator"

FUNCTION_SOURCE = """
from gpu_runtime.framework import Retry, handler, serve

@handler
async def run(request):
    if "fail" in request.payload:
        raise Retry("this invocation always fails", after=0)
    return request.payload

serve()
"""
"""Returns the payload. An invocation whose payload has the key `fail` becomes a dead letter."""


@dataclass(frozen=True)
class ServerlessStack:
    control_plane: ControlPlane
    kube: RawKubeClient
    nats: NatsServer
    nats_url: str
    """The NATS URL with the account of all processes."""
    runtime_api: RuntimeAPIReplica
    activator: MeasuredProcess
    result_store: MeasuredProcess
    controller_manager: MeasuredProcess
    folder: Path
    function_ids: dict[str, str] = field(default_factory=dict)
    """The functionID of each function, by name."""

    def stored_count(self) -> int:
        return int(self.result_store.metric_sum(STORED_METRIC))

    async def wait_until_stored(self, count: int, timeout_seconds: float) -> float:
        """Wait until this number of results is stored, and return that time of the monotonic clock.

        The returned time is a few milliseconds late because of the polling interval.
        """
        deadline = time.monotonic() + timeout_seconds
        while self.stored_count() < count:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{self.stored_count()} of {count} results were stored")
            await asyncio.sleep(0.02)
        return time.monotonic()

    def cpu_seconds(self) -> dict[str, float]:
        """Return the CPU time of each process since its start."""
        processes = {
            "activator": self.activator,
            "result-store": self.result_store,
            "controller-manager": self.controller_manager,
        }
        cpu_seconds = {name: each.cpu_seconds() for name, each in processes.items()}
        cpu_seconds["runtime-api"] = self.runtime_api.process.cpu_seconds()
        cpu_seconds["nats-server"] = cpu_seconds_of(self.nats.processes.get("nats").pid or 0)
        return cpu_seconds


@asynccontextmanager
async def serverless_stack(
    gpus: int = 1,
    streams: dict[str, Any] | None = None,
    max_result_bytes: int | None = None,
    api_settings: dict[str, Any] | None = None,
) -> AsyncIterator[ServerlessStack]:
    """Start all processes.

    `streams` is the section `nats.streams` of all processes. `api_settings` replaces sections of the settings of the
    runtime API.
    """
    async with testbed(gpus, ACTIVATOR_USER) as bed:
        with ExitStack() as stack:
            server = stack.enter_context(temporary_nats_server())
            url = server.create_account().url
            nats: dict[str, Any] = {"nats": {"urls": [url], "streams": streams or {}}}
            controller = stack.enter_context(start_controller_manager(bed.control_plane, bed.folder))
            api_sections = nats | (api_settings or {})
            api = stack.enter_context(start_runtime_api(bed.control_plane, bed.folder, "runtime-api", **api_sections))
            retention: dict[str, Any] = {"retention": {"maxBytes": max_result_bytes}} if max_result_bytes else {}
            store = stack.enter_context(start_result_store(bed.folder, url, **nats, **retention))
            activator = stack.enter_context(_start_activator(bed.control_plane, bed.folder, nats, api.url))
            yield ServerlessStack(
                bed.control_plane, bed.kube, server, url, api, activator, store, controller, bed.folder
            )


async def create_functions(
    stack: ServerlessStack, names: Sequence[str], *, running: bool, max_workers: int = 1
) -> None:
    async def create(name: str) -> None:
        manifest = function_manifest(name, running=running, max_workers=max_workers)
        await stack.kube.create(units_path("runtime-instance"), manifest)
        path = f"/apis/{GROUP}/{VERSION}/namespaces/{SYSTEM_NAMESPACE}/functionqueues/{function_queue_name(name)}"
        while "spec" not in (queue := await stack.kube.get(path)):  # noqa: ASYNC110 - another process creates it
            await asyncio.sleep(0.02)
        stack.function_ids[name] = queue["spec"]["functionID"]

    await for_each_concurrently(8, names, create)


def function_manifest(name: str, *, running: bool, max_workers: int = 1) -> dict[str, Any]:
    serverless = {"enabled": True, "requestID": name, "maxWorkers": max_workers, "concurrency": FUNCTION_CONCURRENCY}
    spec = {"specName": "bench", "image": "gpu-runtime:local", "running": running, "serverless": serverless}
    spec["template"] = {"command": ["python", "-c"], "args": [FUNCTION_SOURCE]}
    metadata = {"name": name, "namespace": "runtime-instance"}
    return {"apiVersion": "runtime.lokiwager.io/v1alpha1", "kind": "GPUUnit", "metadata": metadata, "spec": spec}


@dataclass(frozen=True)
class WorkerProcesses:
    sidecar: MeasuredProcess
    framework: "subprocess.Popen[bytes]"
    exit_stack: ExitStack


@contextmanager
def start_workers(stack: ServerlessStack, functions: Sequence[str]) -> Iterator[list[WorkerProcesses]]:
    """Start a worker for each function. Several workers start and stop concurrently, because each mostly waits."""
    with ThreadPoolExecutor(MAX_CONCURRENT_STARTS) as pool:
        process = list(pool.map(lambda name: _start_worker(stack, name), functions))
        try:
            yield process
        finally:
            list(pool.map(lambda each: each.exit_stack.close(), process))


def worker_cpu_seconds(workers: Sequence[WorkerProcesses]) -> dict[str, float]:
    """Return the total CPU time of all sidecars and of all frameworks since their start."""
    return {
        "worker-sidecar": sum(each.sidecar.cpu_seconds() for each in workers),
        "framework": sum(cpu_seconds_of(each.framework.pid) for each in workers),
    }


def _start_worker(stack: ServerlessStack, name: str) -> WorkerProcesses:
    with ExitStack() as exit_stack:
        framework = exit_stack.enter_context(_start_framework(stack.folder, name))
        sidecar = exit_stack.enter_context(_start_sidecar(stack, name))
        return WorkerProcesses(sidecar, framework, exit_stack.pop_all())


@contextmanager
def _start_activator(
    kubernetes: ControlPlane, folder: Path, nats: dict[str, Any], api: str
) -> Iterator[MeasuredProcess]:
    token = folder / "token"
    token.write_text(API_TOKEN)
    settings = nats | {
        "kubernetes": {"kubeconfig": str(kubernetes.kubeconfig_for("activator", ACTIVATOR_USER))},
        "runtimeAPI": {"url": api, "tokenFile": str(token)},
        **ticket_section(folder),
    }
    with start_process("activator", folder, settings, _is_leader) as process:
        yield process


@contextmanager
def _start_framework(folder: Path, name: str) -> Iterator["subprocess.Popen[bytes]"]:
    variables = {"GPU_RUNTIME_SOCKET": _socket_path(folder, name), "GPU_RUNTIME_CONCURRENCY": str(FUNCTION_CONCURRENCY)}
    with (folder / f"framework-{name}.log").open("ab") as stderr:
        process = subprocess.Popen(
            [*DIE_WITH_PARENT, sys.executable, "-c", FUNCTION_SOURCE], env=variables, stderr=stderr
        )
    try:
        yield process
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def _start_sidecar(stack: ServerlessStack, name: str) -> Iterator[MeasuredProcess]:
    settings = {
        "nats": {"urls": [stack.nats_url]},
        "functionID": stack.function_ids[name],
        "requestID": name,
        "worker": name,
        "namespace": "runtime-instance",
        "concurrency": FUNCTION_CONCURRENCY,
        "framework": {"socketPath": _socket_path(stack.folder, name)},
    }
    with start_process(
        "worker-sidecar", stack.folder, settings, MeasuredProcess.is_ready, f"sidecar-{name}"
    ) as process:
        yield process


def _socket_path(folder: Path, name: str) -> str:
    return str(folder / f"{name}.sock")


def _is_leader(process: MeasuredProcess) -> bool:
    return process.is_ready() and process.metric_sum("leader_election_master_status{") == 1
