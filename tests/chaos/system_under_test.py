"""Runs the complete system for chaos tests: each process of the product, with the identity of its RBAC manifests.

The Kubernetes control plane and NATS are real; only the nodes are simulated. A supervisor restarts killed processes, as
the kubelet does. Each connection between two processes goes through a TCP proxy that can stall or disconnect.
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

from localcluster.control_plane import ControlPlane, temporary_control_plane
from localcluster.free_ports import free_port
from localcluster.nats_server import NatsServer, temporary_nats_server
from localcluster.paths import PROJECT_ROOT, scratch_dir
from localcluster.supervisor_client import ProcessFailed, SupervisorClient, tail_log
from localcluster.tmpfs_disk import TmpfsDisk, tmpfs_command
from tests.chaos.invariants import StreamBacklog
from tests.chaos.tcp_proxy import TcpProxy, running_proxy
from tests.integration.activator.activator_harness import ACTIVATOR_USER
from tests.integration.conftest import nats_liveness_path
from tests.integration.controller_manager.conftest import CONTROLLER_MANAGER_USER, install_manifests
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER
from tests.integration.runtime_api.live_platform import TOKEN
from tests.ticket_keys import TICKET_SECTION

GPU_RUNTIME_PROGRAM = Path(sys.executable).with_name("gpu-runtime")
SettingsDict = dict[str, Any]

LEADER_ELECTION_SETTINGS = {"leaseDurationSeconds": 7, "renewDeadlineSeconds": 5, "retryPeriodSeconds": 1}
"""The same values as in `config/default`."""
ACK_WAITS = {"invokeAckWaitSeconds": 8, "dispatchAckWaitSeconds": 6, "resultAckWaitSeconds": 8}
"""Shorter than the defaults, so that messages of a paused process are redelivered within the round."""
STREAM_LIMITS = {"maxStreamBytes": 16 * 1024**2, "maxDeadLetterBytes": 8 * 1024**2}
MAX_ATTEMPTS = 10
"""The maximum number of deliveries of an invocation. It is so high that kills alone never dead-letter an invocation."""
NATS_DISK_SIZE, RESULT_STORE_DISK_SIZE = "96m", "24m"


@dataclass(frozen=True)
class ProductProcess:
    """A process of the product."""

    name: str
    """The name under which the supervisor runs the process."""
    health_port: int
    """The port of the health and metrics endpoints."""
    api_port: int = 0
    """The port of the API. Zero if the process does not serve the API."""


@dataclass
class SystemUnderTest:
    control_plane: ControlPlane
    nats: NatsServer
    nats_url: str
    state_dir: Path
    processes: SupervisorClient
    http: aiohttp.ClientSession
    product_processes: list[ProductProcess] = field(default_factory=list)
    proxies: dict[str, TcpProxy] = field(default_factory=dict)
    """The proxies, by source and destination, for example `runtime-api-0 to nats`."""

    @property
    def api_replicas(self) -> list[ProductProcess]:
        return [each for each in self.product_processes if each.api_port]

    def replicas_of(self, kind: str) -> list[ProductProcess]:
        return [each for each in self.product_processes if each.name.startswith(kind)]

    @cached_property
    def disks(self) -> dict[str, TmpfsDisk]:
        return {
            "nats": TmpfsDisk(self.nats.processes, self.nats.state_dir / "jetstream"),
            "result-store": TmpfsDisk(self.processes, self.state_dir / "results"),
        }

    @property
    def log_dirs(self) -> dict[str, Path]:
        """The log folders of the product, Kubernetes and NATS."""
        return {
            "product": self.processes.logs,
            "kubernetes": self.control_plane.processes.logs,
            "nats": self.nats.processes.logs,
        }

    def nats_url_via(self, proxy: TcpProxy) -> str:
        """Return the NATS URL that goes through this proxy."""
        return self.nats_url.replace(f":{self.nats.port}", f":{proxy.port}")

    def nats_settings(self, url: str) -> SettingsDict:
        return {"urls": [url], "requestTimeoutSeconds": 3, "streams": {**ACK_WAITS, **STREAM_LIMITS}}

    async def get(self, port: int, path: str) -> str:
        """Return the response body. It is empty if the status is not 200 or if there is no response."""
        timeout = aiohttp.ClientTimeout(total=2)
        try:
            async with self.http.get(f"http://127.0.0.1:{port}{path}", timeout=timeout) as response:
                return await response.text() if response.status == 200 else ""
        except (aiohttp.ClientError, TimeoutError, OSError):
            return ""

    async def is_leader(self, process: ProductProcess) -> bool:
        lines = (await self.get(process.health_port, "/metrics")).splitlines()
        return any(line.startswith("leader_election_master_status{") and line.endswith(" 1.0") for line in lines)

    async def not_ready(self) -> list[str]:
        """Return the processes of the product that are not ready, and the kinds that have no leader."""
        responses = await asyncio.gather(*(self.get(each.health_port, "/readyz") for each in self.product_processes))
        not_ready = [each.name for each, ready in zip(self.product_processes, responses, strict=True) if not ready]
        return not_ready + [
            f"a leading {kind}" for kind in ("controller-manager", "activator") if not await self._has_leader(kind)
        ]

    async def _has_leader(self, kind: str) -> bool:
        return any(await asyncio.gather(*(self.is_leader(each) for each in self.replicas_of(kind))))

    async def stream_backlogs(self) -> dict[str, StreamBacklog]:
        """Return the backlog of each stream, by the last part of its name."""
        response = await self.get(self.nats.monitor_port, "/jsz?accounts=true&streams=true&consumers=true")
        accounts = json.loads(response)["account_details"] if response else []
        streams = [stream for account in accounts for stream in account.get("stream_detail", ())]
        return {stream["name"].rpartition("_")[2]: _stream_backlog(stream) for stream in streams}

    async def purge_streams(self, names: Iterable[str]) -> None:
        client = await nats.connect(self.nats_url)
        for each in names:
            await client.jetstream().purge_stream(f"RUNTIME_SERVERLESS_{each}")
        await client.close()


def _stream_backlog(stream: dict[str, Any]) -> StreamBacklog:
    consumers = stream.get("consumer_detail") or ()
    return StreamBacklog(
        stream["state"]["messages"], sum(each["num_pending"] + each["num_ack_pending"] for each in consumers)
    )


@asynccontextmanager
async def running_system() -> AsyncIterator[SystemUnderTest]:
    async with AsyncExitStack() as stack:
        state_dir = stack.enter_context(scratch_dir("chaos-platforms"))
        plane, nats_server = await asyncio.to_thread(_start_dependencies, stack)
        processes = stack.enter_context(_running_supervisor(state_dir))
        http = await stack.enter_async_context(aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)))
        url = (await asyncio.to_thread(nats_server.create_account)).url
        platform = SystemUnderTest(plane, nats_server, url, state_dir, processes, http)
        await _start_processes(platform, stack)
        await _wait_ready(platform)
        stack.enter_context(_restart_unhealthy_nats(platform))
        yield platform


def _start_dependencies(stack: AsyncExitStack) -> tuple[ControlPlane, NatsServer]:
    nats_server = stack.enter_context(
        temporary_nats_server(
            supervisor_wrapper=lambda state_dir: tmpfs_command(state_dir / "jetstream", NATS_DISK_SIZE)
        )
    )
    plane = stack.enter_context(temporary_control_plane(nodes=4, gpus_per_node=1000))
    install_manifests(plane)
    plane.kubectl("apply", "--server-side", "-f", str(PROJECT_ROOT / "localcluster" / "node.yaml"))
    plane.start_provisioner()
    return plane, nats_server


@contextmanager
def _running_supervisor(state_dir: Path) -> Iterator[SupervisorClient]:
    processes = SupervisorClient(state_dir)
    try:
        processes.launch(tmpfs_command(state_dir / "results", RESULT_STORE_DISK_SIZE), die_with_parent=True)
        yield processes
    finally:
        processes.shutdown()


@contextmanager
def _restart_unhealthy_nats(platform: SystemUnderTest) -> Iterator[None]:
    """Restart the NATS server if it fails the liveness probe of `config/nats`, as the kubelet does."""
    path = nats_liveness_path()

    async def probe() -> None:
        failures = 0
        while True:
            await asyncio.sleep(1)
            healthy = await platform.get(platform.nats.monitor_port, path)
            failures = 0 if healthy else failures + 1
            if failures == 6:
                failures = 0
                with suppress(ProcessFailed):  # the supervisor is already restarting the server
                    await asyncio.to_thread(platform.nats.processes.signal, "nats", Signals.SIGTERM)

    task = asyncio.create_task(probe())
    try:
        yield
    finally:
        task.cancel()


async def _start_processes(platform: SystemUnderTest, stack: AsyncExitStack) -> None:
    processes = {
        "controller-manager": (2, CONTROLLER_MANAGER_USER, ("kubernetes",)),
        "runtime-api": (3, RUNTIME_API_USER, ("kubernetes", "nats")),
        "activator": (2, ACTIVATOR_USER, ("kubernetes", "nats", "runtime-api")),
        "result-store": (1, "", ("nats",)),
    }
    for command, (replicas, user, destinations) in processes.items():
        for number in range(replicas):
            name = f"{command}-{number}"
            ports = {
                "kubernetes": [platform.control_plane.port],
                "nats": [platform.nats.port],
                "runtime-api": [each.api_port for each in platform.api_replicas],
            }
            for destination in destinations:
                proxy = await stack.enter_async_context(running_proxy(*ports[destination]))
                platform.proxies[f"{name} to {destination}"] = proxy
            await asyncio.to_thread(_start_process, platform, command, name, user)


def _start_process(platform: SystemUnderTest, command: str, name: str, user: str) -> None:
    process = ProductProcess(name, free_port(), free_port() if command == "runtime-api" else 0)
    config = platform.state_dir / f"{name}.yaml"
    settings = {"health": {"bindAddress": f"127.0.0.1:{process.health_port}"}}
    if user:
        settings["kubernetes"] = {"kubeconfig": str(_kubeconfig(platform, name, user))}
    config.write_text(yaml.safe_dump(settings | _settings(platform, command, process) | _ticket_section(command)))
    platform.processes.start(name, [GPU_RUNTIME_PROGRAM, command, "--config", config])
    platform.product_processes.append(process)


def _kubeconfig(platform: SystemUnderTest, name: str, user: str) -> Path:
    authority, port = platform.control_plane.authority, platform.proxies[f"{name} to kubernetes"].port
    path = platform.state_dir / f"{name}.kubeconfig"
    return authority.write_kubeconfig(path, f"https://127.0.0.1:{port}", authority.issue(name, user))


def _settings(platform: SystemUnderTest, command: str, process: ProductProcess) -> SettingsDict:
    token_list_file, token_file = platform.state_dir / "tokens.yaml", platform.state_dir / "token"
    entry = {"name": "chaos", "token": TOKEN, "scopes": ["operator", "runtime", "worker"]}
    token_list_file.write_text(yaml.safe_dump({"tokens": [entry]}))
    token_file.write_text(TOKEN)
    proxies = platform.proxies
    match command:
        case "controller-manager":
            sidecar = {"maxAttempts": MAX_ATTEMPTS, "heartbeatSeconds": 1, "drainTimeoutSeconds": 10}
            return {
                "images": {"stock": "gpu-runtime:local", "placeholder": "gpu-runtime:local"},
                "leaderElection": LEADER_ELECTION_SETTINGS,
                "serverless": {"nats": platform.nats_settings(platform.nats_url), "sidecar": sidecar},
            }
        case "runtime-api":
            return {
                "api": {"bindAddress": f"127.0.0.1:{process.api_port}"},
                "authentication": {"mode": "required", "tokenFile": str(token_list_file)},
                "limits": {"requestsPerSecond": 0, "requestTimeoutSeconds": 15},
                "nats": platform.nats_settings(platform.nats_url_via(proxies[f"{process.name} to nats"])),
            }
        case "activator":
            url = f"http://127.0.0.1:{proxies[f'{process.name} to runtime-api'].port}"
            return {
                "leaderElection": LEADER_ELECTION_SETTINGS,
                "runtimeAPI": {"url": url, "tokenFile": str(token_file), "requestTimeoutSeconds": 5},
                "nats": platform.nats_settings(platform.nats_url_via(proxies[f"{process.name} to nats"])),
                "scaling": {
                    "workerLivenessTimeoutSeconds": 30,
                    "failedWorkerGraceSeconds": 10,
                    "initialBackoffSeconds": 1,
                    "maxBackoffSeconds": 5,
                },
            }
    return {
        "nats": platform.nats_settings(platform.nats_url_via(proxies[f"{process.name} to nats"])),
        "database": {"path": str(platform.state_dir / "results" / "results.db")},
        "retention": {"maxBytes": 16 * 1024**2},
    }


def _ticket_section(command: str) -> SettingsDict:
    """The controller manager has no keys of invocation tickets."""
    return {} if command == "controller-manager" else dict(TICKET_SECTION)


async def _wait_ready(platform: SystemUnderTest) -> None:
    not_ready: Sequence[str] = ()
    for _ in range(900):
        if not (not_ready := await platform.not_ready()):
            return
        await asyncio.sleep(0.1)
    logs = "\n".join(tail_log(platform.processes.logs / f"{each.name}.log") for each in platform.product_processes)
    raise ProcessFailed(f"not ready: {', '.join(not_ready)}\n{logs}")
