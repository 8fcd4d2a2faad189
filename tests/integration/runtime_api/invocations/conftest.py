"""Replicas of the runtime API, built as in `main`, over HTTP, with a real API server and a real NATS server."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import pytest
from lightkube import ApiError
from lightkube import Client as LightkubeClient
from lightkube.models.meta_v1 import ObjectMeta
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.crd.well_known import function_queue_name
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.kube.client import open_kube_client
from gpu_runtime.kube.config import load_cluster_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.connection_table import ConnectionLimits
from gpu_runtime.process.health_server import serve_app
from gpu_runtime.process.nats_setup import nats_options
from gpu_runtime.process.rate_limit import CallerRateLimiter
from gpu_runtime.process.shared_settings import BindAddressSettings, NatsSettings, StreamSettings
from gpu_runtime.runtime_api.http.access_log import AccessLog
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.authentication import AnonymousAuthenticator
from gpu_runtime.runtime_api.http.byte_budget import ByteBudget
from gpu_runtime.runtime_api.main import Services, background_tasks, build_services, routes
from gpu_runtime.runtime_api.nats_client import cap_request_timeout
from gpu_runtime.runtime_api.settings import APINamespaceSettings, InvocationSettings, RuntimeAPISettings
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsAccount
from tests.integration.jetstream.conftest import account_options
from tests.integration.kube.polling import eventually
from tests.integration.runtime_api.invocations.fake_serverless_backend import FakeServerlessBackend
from tests.integration.runtime_api.units.conftest import QUEUE, UNIT
from tests.ticket_keys import TICKETS

INVOCATIONS_PATH = "/api/v1/serverless/invocations"
DEAD_LETTERS_PATH = "/api/v1/operator/dead-letters"
MIB = 1024 * 1024
SMALL_STREAMS = StreamSettings(max_messages_per_subject=150, max_stream_bytes=64 * MIB, max_dead_letter_bytes=16 * MIB)
"""Small limits, because the NATS server reserves the maximum size of every stream, and many tests share the server."""


@dataclass(frozen=True)
class InvocationReply:
    status: int
    headers: Any
    body: Any

    @property
    def data(self) -> Any:
        return self.body["data"]

    @property
    def error(self) -> Any:
        return self.body["error"]


@dataclass(frozen=True)
class ApiReplica:
    """One replica and an HTTP client for it."""

    services: Services
    session: aiohttp.ClientSession
    port: int
    registry: CollectorRegistry

    async def request(self, method: str, path: str, **options: Any) -> InvocationReply:
        async with self.session.request(method, f"http://127.0.0.1:{self.port}{path}", **options) as response:
            body = await response.json() if response.status != 204 else None
            return InvocationReply(response.status, response.headers, body)

    async def invoke(self, function: str, **body: Any) -> InvocationReply:
        return await self.request("POST", INVOCATIONS_PATH, json={"serverlessRequestID": function, **body})

    async def get(self, invocation_id: str) -> InvocationReply:
        return await self.request("GET", f"{INVOCATIONS_PATH}/{invocation_id}")

    async def cancel(self, invocation_id: str) -> InvocationReply:
        return await self.request("DELETE", f"{INVOCATIONS_PATH}/{invocation_id}")

    async def list(self, function: str, **query: Any) -> InvocationReply:
        return await self.request("GET", INVOCATIONS_PATH, params={"serverlessRequestID": function, **query})

    async def function_id(self, function: str) -> str:
        return await self.services.invocations.functions.resolve_id(function)

    def invocation_count(self, mode: str, outcome: str) -> float:
        labels = {"mode": mode, "outcome": outcome}
        return self.registry.get_sample_value("gpu_runtime_invocation_requests_total", labels) or 0.0


class StartApi(Protocol):
    async def __call__(self, url: str = "", *, unreachable: bool = False, **settings: Any) -> ApiReplica: ...


@pytest.fixture
async def start_api(
    control_plane: ControlPlane, namespace: str, nats_account: NatsAccount, platform_crds: tuple[str, ...]
) -> AsyncIterator[StartApi]:
    async with AsyncExitStack() as stack:

        async def start(url: str = "", *, unreachable: bool = False, **changes: Any) -> ApiReplica:
            defaults: dict[str, Any] = {
                "nats": NatsSettings(
                    urls=(url or nats_account.url,),
                    streams=SMALL_STREAMS,
                    request_timeout_seconds=0.5 if unreachable else 30,
                ),
                "namespaces": APINamespaceSettings(system=namespace, stock=f"{namespace}-stock", units=(namespace,)),
                "invocations": InvocationSettings(max_sync_wait_seconds=60, result_query_timeout_seconds=10),
            }
            settings = RuntimeAPISettings(**(defaults | changes))
            replica = await stack.enter_async_context(running_replica(control_plane, settings))
            if not unreachable:
                await eventually(lambda: replica.services.nats_client.problem() is None, "NATS is connected")
            return replica

        yield start


@pytest.fixture
async def api(start_api: StartApi) -> ApiReplica:
    return await start_api()


@asynccontextmanager
async def running_replica(plane: ControlPlane, settings: RuntimeAPISettings) -> AsyncIterator[ApiReplica]:
    metrics = KubeMetrics(CollectorRegistry())
    async with (
        open_kube_client(load_cluster_config(plane.kubeconfig), field_manager="test") as client,
        connect_nats(cap_request_timeout(nats_options(settings.nats, "test"))) as nats,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as tasks,
    ):
        services = build_services(client, nats, settings, metrics, TICKETS)
        running = [tasks.create_task(_run(task)) for task in background_tasks(services)]
        edge = Edge(
            *(AnonymousAuthenticator(), CallerRateLimiter(0, 1), CallerRateLimiter(0, 1)),
            ByteBudget(settings.limits.max_bytes_in_flight),
            AccessLog(metrics.registry),
            settings.limits,
            services.staleness.reason,
            asyncio.Event(),
        )
        async with serve_app(
            make_app(routes(services), edge),
            BindAddressSettings(bind_address="127.0.0.1:0"),
            shutdown_timeout=5,
            connection_limits=ConnectionLimits(settings.limits.max_connections, settings.limits.max_connections),
        ) as port:
            await eventually(lambda: services.informers.has_synced, "the informers have synced")
            yield ApiReplica(services, session, port, metrics.registry)
        for task in running:
            task.cancel()


async def _run(background_task: Any) -> None:
    await background_task()


@dataclass(frozen=True)
class FunctionCluster:
    kube: LightkubeClient
    namespace: str

    def create_function(self, request_id: str = "", **serverless: Any) -> str:
        """Create a stopped function and return its requestID."""
        request_id = request_id or f"f-{uuid.uuid4().hex[:8]}"
        function = {"enabled": True, "requestID": request_id, **serverless}
        self.create_queue(self.create_unit(f"u-{uuid.uuid4().hex[:8]}", serverless=function))
        return request_id

    def create_queue(self, function: Any) -> None:
        """Create the FunctionQueue of a function, like the controller manager. The first function gets it."""
        metadata, request_id = function.metadata, function["spec"]["serverless"]["requestID"]
        owner = {"namespace": metadata.namespace, "name": metadata.name, "uid": metadata.uid}
        spec = {"functionID": f"id-{uuid.uuid4().hex}", "requestID": request_id, "function": owner}
        name = function_queue_name(request_id)
        with suppress(ApiError):
            self.kube.create(QUEUE(metadata=ObjectMeta(name=name, namespace=self.namespace), spec=spec))

    def create_unit(self, name: str, **spec: Any) -> Any:
        metadata = ObjectMeta(name=name, namespace=self.namespace)
        return self.kube.create(
            UNIT(metadata=metadata, spec={"specName": "g1.1", "image": "i", "running": False, **spec})
        )


@pytest.fixture
def cluster(kube: LightkubeClient, namespace: str, platform_crds: tuple[str, ...]) -> FunctionCluster:
    return FunctionCluster(kube, namespace)


@pytest.fixture
def function(cluster: FunctionCluster) -> str:
    return cluster.create_function()


@pytest.fixture
async def backend(nats_account: NatsAccount) -> AsyncIterator[FakeServerlessBackend]:
    async with serverless_backend(account_options(nats_account)) as backend:
        yield backend


@asynccontextmanager
async def serverless_backend(options: ConnectionOptions) -> AsyncIterator[FakeServerlessBackend]:
    async with connect_nats(options) as connection:
        await connection.wait_connected(60)
        yield FakeServerlessBackend(connection)
