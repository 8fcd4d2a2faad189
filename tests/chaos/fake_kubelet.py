"""Acts as the kubelet of worker pods: starts the framework and the sidecar process of each pod, and stops them when the
pod is deleted."""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from signal import Signals
from typing import Any

import aiohttp

from gpu_runtime.contract.crd.well_known import Label
from gpu_runtime.contract.framework_protocol import SOCKET_VARIABLE
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import SETTINGS_ANNOTATION
from localcluster.free_ports import free_port
from localcluster.supervisor_client import ProcessFailed
from tests.chaos.system_under_test import GPU_RUNTIME_PROGRAM, SystemUnderTest
from tests.chaos.tcp_proxy import TcpProxy, running_proxy
from tests.integration.controller_manager.conftest import Object

DRAIN_TIMEOUT_SECONDS = 12.0
"""How long the stop of a pod waits for the invocations in flight of its worker."""


@dataclass
class WorkerProcesses:
    pod: Object
    port: int = field(default_factory=free_port)
    stopped: asyncio.Event = field(default_factory=asyncio.Event)
    proxy: TcpProxy | None = None

    @property
    def uid(self) -> str:
        return str(self.pod["metadata"]["uid"])

    @property
    def unit(self) -> str:
        return str(self.pod["metadata"]["labels"][Label.UNIT])

    @property
    def sidecar(self) -> str:
        return f"sidecar-{self.unit}-{self.uid[:8]}"

    @property
    def framework(self) -> str:
        return f"framework-{self.unit}-{self.uid[:8]}"


@dataclass
class FakeKubelet:
    platform: SystemUnderTest
    tasks: asyncio.TaskGroup
    workers: dict[str, WorkerProcesses] = field(default_factory=dict)
    """The workers, by the UID of their pod."""
    started_count: int = 0

    def sync_pods(self, pods: Iterable[Object]) -> None:
        """Start and stop processes so that exactly these pods have their processes."""
        worker_pods = {each["metadata"]["uid"]: each for each in pods if _is_worker_pod(each)}
        for uid in self.workers.keys() - worker_pods.keys():
            self.workers[uid].stopped.set()
        for uid in worker_pods.keys() - self.workers.keys():
            self.workers[uid] = worker = WorkerProcesses(worker_pods[uid])
            self.tasks.create_task(self._run_worker(worker))

    @property
    def running_workers(self) -> list[WorkerProcesses]:
        """The workers whose processes run. They are sorted by unit name, because pod names and UIDs are random."""
        return sorted(
            (each for each in self.workers.values() if each.proxy and not each.stopped.is_set()), key=lambda w: w.unit
        )

    async def _run_worker(self, worker: WorkerProcesses) -> None:
        async with AsyncExitStack() as stack:
            worker.proxy = await stack.enter_async_context(running_proxy(self.platform.nats.port))
            try:
                await asyncio.to_thread(self._start, worker)
                self.started_count += 1
                await worker.stopped.wait()
                await self._drain(worker)
            finally:
                await asyncio.to_thread(self._stop, worker)
                del self.workers[worker.uid]

    def _start(self, worker: WorkerProcesses) -> None:
        folder = self.platform.state_dir / "pods"
        folder.mkdir(exist_ok=True)
        socket, config = folder / f"{worker.uid[:13]}.sock", folder / f"{worker.uid[:13]}.yaml"
        config.write_text(json.dumps(self._settings(worker, socket)))
        processes, container = self.platform.processes, worker.pod["spec"]["containers"][0]
        env = {each["name"]: each.get("value", "") for each in container["env"]} | {SOCKET_VARIABLE: str(socket)}
        arguments: list[str] = [*container["command"], *container["args"]][1:]
        processes.start(worker.framework, [sys.executable, *arguments], env=env)
        command = [str(GPU_RUNTIME_PROGRAM), "worker-sidecar", "--config", str(config)]
        processes.start(worker.sidecar, command, env={"POD_UID": worker.uid})

    def _settings(self, worker: WorkerProcesses, socket: Path) -> dict[str, Any]:
        settings: dict[str, Any] = json.loads(worker.pod["metadata"]["annotations"][SETTINGS_ANNOTATION])
        assert worker.proxy
        settings["nats"]["urls"] = [self.platform.nats_url_via(worker.proxy)]
        settings["framework"]["socketPath"] = str(socket)
        return settings | {"health": {"bindAddress": f"127.0.0.1:{worker.port}"}}

    async def _drain(self, worker: WorkerProcesses) -> None:
        """Call the preStop hooks of both containers, as the kubelet does before it stops the user's container."""
        with suppress(ProcessFailed):
            self.platform.processes.signal(worker.sidecar, Signals.SIGUSR1)
        timeout = aiohttp.ClientTimeout(total=DRAIN_TIMEOUT_SECONDS)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self.platform.http.get(f"http://127.0.0.1:{worker.port}/drained", timeout=timeout):
                pass

    def _stop(self, worker: WorkerProcesses) -> None:
        for name in (worker.framework, worker.sidecar):
            for number in (Signals.SIGTERM, Signals.SIGKILL):
                try:
                    self.platform.processes.stop(name, number, timeout=8)
                    break
                except ProcessFailed:
                    continue


def _is_worker_pod(pod: Object) -> bool:
    metadata = pod["metadata"]
    return Label.NATS_ACCESS in metadata.get("labels", {}) and "deletionTimestamp" not in metadata


@asynccontextmanager
async def running_kubelet(platform: SystemUnderTest) -> AsyncIterator[FakeKubelet]:
    async with asyncio.TaskGroup() as tasks:
        kubelet = FakeKubelet(platform, tasks)
        try:
            yield kubelet
        finally:
            kubelet.sync_pods(())
