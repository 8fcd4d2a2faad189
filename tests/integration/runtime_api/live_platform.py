"""The whole platform for tests: API server, scheduler, simulated nodes, NATS, controller manager and three runtime
APIs.

Every component is a separate process with the identity that the RBAC manifests give it. Tests use the HTTP API.
"""

import asyncio
import json
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from signal import Signals
from typing import Any

import aiohttp
import yaml
from lightkube import AsyncClient, KubeConfig
from lightkube.generic_resource import create_namespaced_resource

from localcluster import control_plane as control_planes
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsAccount
from localcluster.supervisor_client import tail_log
from tests.conftest import enter_or_skip
from tests.integration.controller_manager.conftest import CONTROLLER_MANAGER_USER as MANAGER
from tests.integration.controller_manager.conftest import (
    GPU_RUNTIME_PROGRAM,
    UNIT,
    ControllerManagerProcess,
    Object,
    install_manifests,
)
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER, ApiProcess, nats_settings

STOCK_NAMESPACE, UNIT_NAMESPACE = "runtime-stock", "runtime-instance"
OPERATION = create_namespaced_resource("runtime.lokiwager.io", "v1alpha1", "Operation", "operations")
TOKEN = "one-token-with-all-scopes-of-the-api"  # noqa: S105 - used by tests only


class LiveApiProcess(ApiProcess):
    """The real program, with authentication and without rate limits."""

    def command(self, config: Path) -> list[str]:
        return [str(GPU_RUNTIME_PROGRAM), "runtime-api", "--config", str(config)]

    def kill(self) -> None:
        assert self.process
        self.process.kill()
        self.process.wait(60)

    def stop(self) -> None:
        if self.process is not None:
            self.process.send_signal(Signals.SIGCONT)
            self.kill()


@dataclass
class LivePlatform:
    control_plane: ControlPlane
    folder: Path
    nats_account: NatsAccount
    manager: ControllerManagerProcess
    """The controller manager, which is the leader. A test that kills it must start it again."""
    shared_replicas: list[LiveApiProcess] = field(default_factory=list)
    """Replicas that all tests share. A test that kills one must start it again."""

    def new_replica(self, name: str, kubeconfig: Path | None = None, **settings: Any) -> LiveApiProcess:
        """A replica that is not started yet. By default it connects to the API server directly."""
        identity = kubeconfig or self.control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER)
        authentication = {"mode": "required", "tokenFile": str(self._token_file())}
        limits = {"requestsPerSecond": 0, "requestTimeoutSeconds": 240, "shutdownDelaySeconds": 0.3}
        # Kubernetes is slow on a busy machine. A long timeout prevents correct but unwanted 503 responses.
        kubernetes = {"kubeconfig": str(identity), "requestTimeoutSeconds": 60}
        merged = {"authentication": authentication, "limits": limits, "kubernetes": kubernetes}
        merged |= {"nats": nats_settings(self.nats_account), **settings}
        return LiveApiProcess(self.folder / name, identity, merged)

    def _token_file(self) -> Path:
        path = self.folder / "tokens.yaml"
        if not path.exists():
            entry = {"name": "tests", "token": TOKEN, "scopes": ["operator", "runtime", "worker"]}
            path.write_text(yaml.safe_dump({"tokens": [entry]}))
        return path


@contextmanager
def running_live_platform(
    folder: Path, nats: NatsAccount, replicas: int = 3, **api_settings: Any
) -> Iterator[LivePlatform]:
    with enter_or_skip(control_planes.temporary_control_plane(nodes=4, gpus_per_node=1000)) as plane:
        install_manifests(plane)
        manager = ControllerManagerProcess(
            folder / "manager", plane.kubeconfig_for("manager", MANAGER), {"log": {"level": "info"}}
        )
        platform = LivePlatform(plane, folder, nats, manager)
        platform.shared_replicas += [
            platform.new_replica(f"shared-{number}", **api_settings) for number in range(replicas)
        ]
        try:
            manager.start()
            for replica in platform.shared_replicas:
                replica.start()
            for replica in platform.shared_replicas:
                replica.wait_ready()
            manager.wait_ready().wait_leading()
            yield platform
        finally:
            for replica in platform.shared_replicas:
                replica.stop()
            manager.stop()


@dataclass(frozen=True)
class ApiResponse:
    status: int
    """0 if there was no response."""
    body: Any = None

    @property
    def code(self) -> str:
        return str(self.body["error"]["code"]) if isinstance(self.body, dict) and "error" in self.body else ""


@dataclass(frozen=True)
class ClusterSnapshot:
    """The objects in the cluster, read without the code of the product."""

    stock: list[Object]
    units: list[Object]
    operations: dict[str, Object]

    def stock_of(self, flavor: str) -> list[Object]:
        return [each for each in self.stock if each["spec"]["specName"] == flavor]

    def units_of(self, flavor: str) -> list[Object]:
        return [each for each in self.units if each["spec"]["specName"] == flavor]

    def operations_of(self, kind: str, flavor: str) -> list[Object]:
        of_kind = [each for each in self.operations.values() if each["spec"]["type"] == kind]
        return [each for each in of_kind if recorded_request(each).get("specName") == flavor]


@dataclass(frozen=True)
class ClusterReader:
    """Reads the cluster without the code of the product."""

    kube: AsyncClient

    async def snapshot(self) -> ClusterSnapshot:
        stock, units, operations = await asyncio.gather(
            self.list_objects(UNIT, STOCK_NAMESPACE),
            self.list_objects(UNIT, UNIT_NAMESPACE),
            self.list_objects(OPERATION, "runtime-system"),
        )
        return ClusterSnapshot(stock, units, {each["spec"]["operationID"]: each for each in operations})

    async def list_objects(self, kind: Any, namespace: str) -> list[Object]:
        return [dict(each.to_dict()) async for each in self.kube.list(kind, namespace=namespace, chunk_size=500)]


@dataclass(frozen=True)
class ApiCaller(ClusterReader):
    """A client of the API that can also read the cluster."""

    platform: LivePlatform
    http: aiohttp.ClientSession

    async def request(self, replica: ApiProcess, method: str, path: str, body: Any = None) -> ApiResponse:
        return await send_request(self.http, method, replica.url(path), body)

    async def create_unit(self, replica: ApiProcess, flavor: str, name: str) -> ApiResponse:
        return await self.request(replica, "POST", "/api/v1/gpu-units", unit_request(flavor, name))

    async def delete_unit(self, replica: ApiProcess, name: str) -> ApiResponse:
        return await self.request(replica, "DELETE", f"/api/v1/gpu-units/{name}")

    async def seed_stock(self, replica: ApiProcess, flavor: str, count: int, operation_id: str = "") -> ApiResponse:
        return await self.request(
            replica, "POST", "/api/v1/operator/stock-units", seed_request(flavor, count, operation_id)
        )

    async def seed_and_wait(self, flavors: Mapping[str, int]) -> None:
        """Seed stock of each flavor, and wait until every shared replica sees all of it Ready."""
        responses = await asyncio.gather(
            *(self.seed_stock(self.platform.shared_replicas[0], each, count) for each, count in flavors.items())
        )
        assert {response.status for response in responses} == {202}, responses
        await until(partial(self._seeding_is_finished, flavors), "the SeedStock operations have succeeded")
        await asyncio.gather(*(self.wait_stock_visible(replica, flavors) for replica in self.platform.shared_replicas))

    async def _seeding_is_finished(self, flavors: Mapping[str, int]) -> bool:
        snapshot = await self.snapshot()
        operations = [each for flavor in flavors for each in snapshot.operations_of("SeedStock", flavor)]
        return all(operation_state(each) == "Succeeded" for each in operations)

    async def wait_stock_visible(self, replica: ApiProcess, flavors: Mapping[str, int]) -> None:
        async def complete() -> bool:
            response = await self.request(replica, "GET", "/api/v1/operator/inventory")
            ready = Counter({each["specName"]: each["stock"]["ready"] for each in response.body["data"]["flavors"]})
            return all(ready[flavor] == count for flavor, count in flavors.items())

        await until(complete, "stock is Ready")

    async def start_replicas(self, *replicas: LiveApiProcess) -> None:
        for replica in replicas:
            replica.start()
        await asyncio.gather(*(self.wait_ready(replica) for replica in replicas))

    async def wait_ready(self, replica: ApiProcess) -> None:
        async def is_ready() -> bool:
            assert replica.process
            assert replica.process.poll() is None, f"{replica.folder} has exited:\n{tail_log(replica.log, 20)}"
            return (await self.request(replica, "GET", "/readyz")).status == 200

        await until(is_ready, f"{replica.folder} is ready", 180)


@asynccontextmanager
async def api_caller(platform: LivePlatform) -> AsyncIterator[ApiCaller]:
    connector = aiohttp.TCPConnector(limit=0)
    headers, timeout = {"Authorization": f"Bearer {TOKEN}"}, aiohttp.ClientTimeout(total=240)
    kube = AsyncClient(config=KubeConfig.from_file(platform.control_plane.kubeconfig))
    async with aiohttp.ClientSession(connector=connector, headers=headers, timeout=timeout) as http:
        yield ApiCaller(kube, platform, http)
    await kube.close()


async def send_request(http: aiohttp.ClientSession, method: str, url: str, body: Any = None) -> ApiResponse:
    try:
        async with http.request(method, url, json=body) as response:
            is_json = response.content_type == "application/json"
            return ApiResponse(response.status, await response.json() if is_json else await response.text())
    except (aiohttp.ClientError, TimeoutError, OSError):
        return ApiResponse(0)


def unit_request(flavor: str, name: str) -> Object:
    return {"operationID": f"make-{name}", "name": name, "specName": flavor, "image": "python:3.12"}


def seed_request(flavor: str, count: int, operation: str = "") -> Object:
    identifiers = {"operationID": operation or f"seed-{flavor}", "specName": flavor}
    return {**identifiers, "memory": "1Gi", "gpu": 1, "replicas": count}


def recorded_request(operation: Object) -> Object:
    """The recorded request. Empty if the operation waits for stock."""
    recorded = operation["spec"].get("request") or operation.get("status", {}).get("request")
    return dict(json.loads(recorded)) if recorded else {}


def operation_state(operation: Object) -> str:
    """The state of the operation. An operation that is created with stock is Running from the start."""
    initial = "Running" if operation.get("spec", {}).get("stock") else "Accepted"
    return str(operation.get("status", {}).get("state", initial))


async def until(condition: Callable[[], Awaitable[bool]], description: str, seconds: float = 60) -> float:
    """Wait until the condition holds. Returns how long that took, in seconds."""
    started = time.monotonic()
    while not await condition():
        assert time.monotonic() - started < seconds, f"not within {seconds:g} s: {description}"
        await asyncio.sleep(0.05)
    return time.monotonic() - started
