"""In place of a kubelet: every pod of a worker gets its two processes here, and they end with it."""

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
from gpu_runtime.controller_manager.gpu_unit.children.sidecar import SETTINGS
from localcluster.control_plane import free_port
from localcluster.supervisor_client import ProcessFailed
from tests.chaos.links import Link, link
from tests.chaos.platform import PROGRAM, Platform
from tests.integration.controller_manager.conftest import Object

DRAINING = 12.0
"""Seconds that the end of a pod waits for what its worker has in hand."""


@dataclass
class Worker:
    pod: Object
    port: int = field(default_factory=free_port)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    link: Link | None = None

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
class Kubelet:
    platform: Platform
    tasks: asyncio.TaskGroup
    workers: dict[str, Worker] = field(default_factory=dict)
    """By the UIDs of their pods."""
    started: int = 0

    def see(self, pods: Iterable[Object]) -> None:
        """These pods are there, and no others."""
        serving = {each["metadata"]["uid"]: each for each in pods if _serves(each)}
        for uid in self.workers.keys() - serving.keys():
            self.workers[uid].over.set()
        for uid in serving.keys() - self.workers.keys():
            self.workers[uid] = worker = Worker(serving[uid])
            self.tasks.create_task(self._live(worker))

    @property
    def living(self) -> list[Worker]:
        """Those whose processes run, in an order that does not depend on names that nobody can foresee."""
        return sorted(
            (each for each in self.workers.values() if each.link and not each.over.is_set()), key=lambda w: w.unit
        )

    async def _live(self, worker: Worker) -> None:
        async with AsyncExitStack() as stack:
            worker.link = await stack.enter_async_context(link(self.platform.nats.port))
            try:
                await asyncio.to_thread(self._start, worker)
                self.started += 1
                await worker.over.wait()
                await self._drain(worker)
            finally:
                await asyncio.to_thread(self._stop, worker)
                del self.workers[worker.uid]

    def _start(self, worker: Worker) -> None:
        place = self.platform.state / "pods"
        place.mkdir(exist_ok=True)
        socket, config = place / f"{worker.uid[:13]}.sock", place / f"{worker.uid[:13]}.yaml"
        config.write_text(json.dumps(self._settings(worker, socket)))
        processes, container = self.platform.processes, worker.pod["spec"]["containers"][0]
        told = {each["name"]: each.get("value", "") for each in container["env"]} | {SOCKET_VARIABLE: str(socket)}
        arguments: list[str] = [*container["command"], *container["args"]][1:]
        processes.start(worker.framework, [sys.executable, *arguments], env=told)
        command = [str(PROGRAM), "worker-sidecar", "--config", str(config)]
        processes.start(worker.sidecar, command, env={"POD_UID": worker.uid})

    def _settings(self, worker: Worker, socket: Path) -> dict[str, Any]:
        given: dict[str, Any] = json.loads(worker.pod["metadata"]["annotations"][SETTINGS])
        assert worker.link
        given["nats"]["urls"] = [self.platform.through(worker.link)]
        given["framework"]["socketPath"] = str(socket)
        return given | {"endpoints": {"bind": f"127.0.0.1:{worker.port}"}}

    async def _drain(self, worker: Worker) -> None:
        """The hook before the user's container ends."""
        patience = aiohttp.ClientTimeout(total=DRAINING)
        with suppress(aiohttp.ClientError, TimeoutError, OSError):
            async with self.platform.http.get(f"http://127.0.0.1:{worker.port}/drain", timeout=patience):
                pass

    def _stop(self, worker: Worker) -> None:
        for name in (worker.framework, worker.sidecar):
            for number in (Signals.SIGTERM, Signals.SIGKILL):
                try:
                    self.platform.processes.stop(name, number, timeout=8)
                    break
                except ProcessFailed:
                    continue


def _serves(pod: Object) -> bool:
    about = pod["metadata"]
    return Label.SERVES in about.get("labels", {}) and "deletionTimestamp" not in about


@asynccontextmanager
async def kubelet(platform: Platform) -> AsyncIterator[Kubelet]:
    async with asyncio.TaskGroup() as tasks:
        made = Kubelet(platform, tasks)
        try:
            yield made
        finally:
            made.see(())
