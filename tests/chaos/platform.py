"""The platform as it runs, every process of it a process, under the identity that the RBAC manifests give it.

Kubernetes' control plane and NATS are real; only nodes are simulated. Whoever is killed is started again, as the
kubelet would. Each way from one process to another is a link that can be broken.
"""

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from signal import Signals
from typing import Any

import aiohttp
import nats
import yaml

from localcluster.control_plane import ControlPlane, control_plane, free_port
from localcluster.nats_server import NatsServer, nats_server
from localcluster.paths import PROJECT, scratch
from localcluster.supervisor_client import Processes, ProcessFailed, tail
from localcluster.tmpfs_disk import Disk, on_a_disk
from tests.chaos.checks import Queue
from tests.chaos.links import Link, link
from tests.integration.activator.plane import IDENTITY as ACTIVATOR
from tests.integration.conftest import nats_liveness
from tests.integration.controller_manager.conftest import IDENTITY as MANAGER
from tests.integration.controller_manager.conftest import install
from tests.integration.runtime_api.edge.conftest import IDENTITY as API
from tests.integration.runtime_api.live import TOKEN

PROGRAM = Path(sys.executable).with_name("gpu-runtime")
Settings = dict[str, Any]

LEASES = {"leaseSeconds": 7, "renewDeadlineSeconds": 5, "retrySeconds": 1}
"""As `config/default` has them."""
ACK_WAITS = {"invokeAckWaitSeconds": 8, "dispatchAckWaitSeconds": 6, "resultAckWaitSeconds": 8}
"""Shorter than usual: what a pause outlives is to come again within the round."""
ROOM = {"queueBytes": 16 * 1024**2, "deadLetterBytes": 8 * 1024**2}
ATTEMPTS = 10
"""Deliveries before an invocation becomes a dead letter: so many kills hit no single one."""
NATS_DISK, RESULTS_DISK = "96m", "24m"


@dataclass(frozen=True)
class Process:
    """One of the product, as the supervisor knows it."""

    name: str
    port: int
    """Of health and metrics."""
    api: int = 0
    """Of the API, if it serves that."""


@dataclass
class Platform:
    plane: ControlPlane
    nats: NatsServer
    nats_url: str
    state: Path
    processes: Processes
    http: aiohttp.ClientSession
    products: list[Process] = field(default_factory=list)
    links: dict[str, Link] = field(default_factory=dict)
    """By the names of both ends: `runtime-api-0 to nats`."""

    @property
    def replicas(self) -> list[Process]:
        return [each for each in self.products if each.api]

    def called(self, kind: str) -> list[Process]:
        return [each for each in self.products if each.name.startswith(kind)]

    @cached_property
    def disks(self) -> dict[str, Disk]:
        return {
            "nats": Disk(self.nats.processes, self.nats.state / "jetstream"),
            "result-store": Disk(self.processes, self.state / "results"),
        }

    @property
    def logs(self) -> dict[str, Path]:
        """Folders of logs."""
        return {
            "product": self.processes.logs,
            "kubernetes": self.plane.processes.logs,
            "nats": self.nats.processes.logs,
        }

    def through(self, link: Link) -> str:
        """Where NATS is for somebody on this link."""
        return self.nats_url.replace(f":{self.nats.port}", f":{link.port}")

    def queue(self, url: str) -> Settings:
        return {"urls": [url], "requestTimeoutSeconds": 3, "streams": {**ACK_WAITS, **ROOM}}

    async def get(self, port: int, path: str) -> str:
        """What it answers; empty where that is a refusal, or nothing."""
        patience = aiohttp.ClientTimeout(total=2)
        try:
            async with self.http.get(f"http://127.0.0.1:{port}{path}", timeout=patience) as answer:
                return await answer.text() if answer.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""

    async def leads(self, process: Process) -> bool:
        lines = (await self.get(process.port, "/metrics")).splitlines()
        return any(line.startswith("kube_leading{") and line.endswith(" 1.0") for line in lines)

    async def not_ready(self) -> list[str]:
        """Processes of the product that are not, or do not say so, and kinds of which nobody leads."""
        found = await asyncio.gather(*(self.get(each.port, "/readyz") for each in self.products))
        missing = [each.name for each, ready in zip(self.products, found, strict=True) if not ready]
        return missing + [
            f"a leading {kind}" for kind in ("controller-manager", "activator") if not await self._led(kind)
        ]

    async def _led(self, kind: str) -> bool:
        return any(await asyncio.gather(*(self.leads(each) for each in self.called(kind))))

    async def queues(self) -> dict[str, Queue]:
        """What each stream holds, by the end of its name."""
        said = await self.get(self.nats.monitor, "/jsz?accounts=true&streams=true&consumers=true")
        accounts = json.loads(said)["account_details"] if said else []
        streams = [stream for account in accounts for stream in account.get("stream_detail", ())]
        return {stream["name"].rpartition("_")[2]: _queue(stream) for stream in streams}

    async def purge(self, queues: Iterable[str]) -> None:
        client = await nats.connect(self.nats_url)
        for each in queues:
            await client.jetstream().purge_stream(f"RUNTIME_SERVERLESS_{each}")
        await client.close()


def _queue(stream: dict[str, Any]) -> Queue:
    consumers = stream.get("consumer_detail") or ()
    return Queue(stream["state"]["messages"], sum(each["num_pending"] + each["num_ack_pending"] for each in consumers))


@asynccontextmanager
async def running_platform() -> AsyncIterator[Platform]:
    async with AsyncExitStack() as stack:
        state = stack.enter_context(scratch("chaos-platforms"))
        plane, queue = await asyncio.to_thread(_surroundings, stack)
        processes = stack.enter_context(_supervised(state))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        url = (await asyncio.to_thread(queue.account)).url
        made = Platform(plane, queue, url, state, processes, http)
        await _start(made, stack)
        await _wait_ready(made)
        stack.enter_context(_minded(made))
        yield made


def _surroundings(stack: AsyncExitStack) -> tuple[ControlPlane, NatsServer]:
    queue = stack.enter_context(nats_server(wrap=lambda state: on_a_disk(state / "jetstream", NATS_DISK)))
    plane = stack.enter_context(control_plane(nodes=4, gpus_per_node=1000))
    install(plane)
    plane.kubectl("apply", "--server-side", "-f", str(PROJECT / "localcluster" / "node.yaml"))
    plane.start_provisioner()
    return plane, queue


@contextmanager
def _supervised(state: Path) -> Iterator[Processes]:
    processes = Processes(state)
    try:
        processes.launch(on_a_disk(state / "results", RESULTS_DISK), owned=True)
        yield processes
    finally:
        processes.shutdown()


@contextmanager
def _minded(platform: Platform) -> Iterator[None]:
    """As the kubelet does with the liveness probe of `config/nats`: a server that fails it is started anew."""
    path = nats_liveness()

    async def mind() -> None:
        failures = 0
        while True:
            await asyncio.sleep(1)
            healthy = await platform.get(platform.nats.monitor, path)
            failures = 0 if healthy else failures + 1
            if failures == 6:
                failures = 0
                with suppress(ProcessFailed):  # it is on its way back already
                    await asyncio.to_thread(platform.nats.processes.signal, "nats", Signals.SIGTERM)

    task = asyncio.create_task(mind())
    try:
        yield
    finally:
        task.cancel()


async def _start(platform: Platform, stack: AsyncExitStack) -> None:
    queue, api = platform.nats.port, platform.plane.port
    names = {
        "controller-manager": (2, MANAGER, ("kubernetes",)),
        "runtime-api": (3, API, ("kubernetes", "nats")),
        "activator": (2, ACTIVATOR, ("kubernetes", "nats", "runtime-api")),
        "result-store": (1, "", ("nats",)),
    }
    for command, (copies, identity, ends) in names.items():
        for number in range(copies):
            name = f"{command}-{number}"
            reached = {"kubernetes": [api], "nats": [queue], "runtime-api": [each.api for each in platform.replicas]}
            for end in ends:
                platform.links[f"{name} to {end}"] = await stack.enter_async_context(link(*reached[end]))
            await asyncio.to_thread(_start_one, platform, command, name, identity)


def _start_one(platform: Platform, command: str, name: str, identity: str) -> None:
    process = Process(name, free_port(), free_port() if command == "runtime-api" else 0)
    config = platform.state / f"{name}.yaml"
    own = {"endpoints": {"bind": f"127.0.0.1:{process.port}"}}
    if identity:
        own["kubernetes"] = {"kubeconfig": str(_kubeconfig(platform, name, identity))}
    config.write_text(yaml.safe_dump(own | _settings(platform, command, process)))
    platform.processes.start(name, [PROGRAM, command, "--config", config])
    platform.products.append(process)


def _kubeconfig(platform: Platform, name: str, identity: str) -> Path:
    authority, port = platform.plane.authority, platform.links[f"{name} to kubernetes"].port
    path = platform.state / f"{name}.kubeconfig"
    return authority.kubeconfig(path, f"https://127.0.0.1:{port}", authority.issue(name, identity))


def _settings(platform: Platform, command: str, process: Process) -> Settings:
    tokens, token = platform.state / "tokens.yaml", platform.state / "token"
    entry = {"name": "chaos", "token": TOKEN, "scopes": ["operator", "runtime"]}
    tokens.write_text(yaml.safe_dump({"tokens": [entry]}))
    token.write_text(TOKEN)
    links = platform.links
    match command:
        case "controller-manager":
            sidecar = {"attempts": ATTEMPTS, "heartbeatSeconds": 1, "drainSeconds": 10}
            return {
                "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
                "leaderElection": LEASES,
                "serverless": {"nats": platform.queue(platform.nats_url), "sidecar": sidecar},
            }
        case "runtime-api":
            return {
                "api": {"bind": f"127.0.0.1:{process.api}"},
                "authentication": {"mode": "required", "tokenFile": str(tokens)},
                "limits": {"requestsPerSecond": 0, "requestSeconds": 15},
                "nats": platform.queue(platform.through(links[f"{process.name} to nats"])),
            }
        case "activator":
            url = f"http://127.0.0.1:{links[f'{process.name} to runtime-api'].port}"
            return {
                "leaderElection": LEASES,
                "api": {"url": url, "tokenFile": str(token), "timeoutSeconds": 5},
                "nats": platform.queue(platform.through(links[f"{process.name} to nats"])),
                "scaling": {"startSeconds": 30, "failedSeconds": 10, "retryFirstSeconds": 1, "retryLongestSeconds": 5},
            }
    return {
        "nats": platform.queue(platform.through(links[f"{process.name} to nats"])),
        "database": {"path": str(platform.state / "results" / "results.db")},
        "retention": {"bytes": 16 * 1024**2},
    }


async def _wait_ready(platform: Platform) -> None:
    missing: Sequence[str] = ()
    for _ in range(900):
        if not (missing := await platform.not_ready()):
            return
        await asyncio.sleep(0.1)
    said = "\n".join(tail(platform.processes.logs / f"{each.name}.log") for each in platform.products)
    raise ProcessFailed(f"not ready: {', '.join(missing)}\n{said}")
