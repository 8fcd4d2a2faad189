"""The runtime API as `main` builds it, over HTTP, on the real API server and the real NATS; two replicas if wanted."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import aiohttp
import pytest
from lightkube import Client as OtherEyes
from lightkube.models.meta_v1 import ObjectMeta
from prometheus_client import CollectorRegistry

from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.kube.client import connect
from gpu_runtime.kube.config import load_config
from gpu_runtime.kube.metrics import KubeMetrics
from gpu_runtime.process.health_server import listening
from gpu_runtime.process.nats_setup import options_of
from gpu_runtime.process.shared_settings import Endpoints, Nats, Streams
from gpu_runtime.runtime_api.http.access_log import Journal
from gpu_runtime.runtime_api.http.application import Edge, make_app
from gpu_runtime.runtime_api.http.caller import Open
from gpu_runtime.runtime_api.http.rate_limit import Rates
from gpu_runtime.runtime_api.main import Services, background, build, routes
from gpu_runtime.runtime_api.nats_client import impatient
from gpu_runtime.runtime_api.settings import Invocations, Namespaces, RuntimeAPISettings
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import Account
from tests.integration.jetstream.conftest import options
from tests.integration.kube.waiting import eventually
from tests.integration.runtime_api.invocations.plane import OtherSide
from tests.integration.runtime_api.units.conftest import UNIT

PATH = "/api/v1/serverless/invocations"
LETTERS = "/api/v1/operator/dead-letters"
MIB = 1024 * 1024
SMALL = Streams(queued_per_function=150, queue_bytes=64 * MIB, dead_letter_bytes=16 * MIB)
"""The server reserves what streams may hold, and many tests share it."""


@dataclass(frozen=True)
class Reply:
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
class Api:
    """One replica, and somebody who calls it."""

    services: Services
    session: aiohttp.ClientSession
    port: int
    registry: CollectorRegistry

    async def ask(self, method: str, path: str, **how: Any) -> Reply:
        async with self.session.request(method, f"http://127.0.0.1:{self.port}{path}", **how) as answer:
            return Reply(answer.status, answer.headers, await answer.json() if answer.status != 204 else None)

    async def invoke(self, function: str, **body: Any) -> Reply:
        return await self.ask("POST", PATH, json={"serverlessRequestID": function, **body})

    async def get(self, invocation_id: str) -> Reply:
        return await self.ask("GET", f"{PATH}/{invocation_id}")

    async def cancel(self, invocation_id: str) -> Reply:
        return await self.ask("DELETE", f"{PATH}/{invocation_id}")

    async def list(self, function: str, **query: Any) -> Reply:
        return await self.ask("GET", PATH, params={"serverlessRequestID": function, **query})

    def counted(self, mode: str, outcome: str) -> float:
        labels = {"mode": mode, "outcome": outcome}
        return self.registry.get_sample_value("runtime_api_invocations_total", labels) or 0.0


class Apis(Protocol):
    async def __call__(self, url: str = "", *, away: bool = False, **settings: Any) -> Api: ...


@pytest.fixture
async def apis(
    control_plane: ControlPlane, namespace: str, nats_account: Account, platform_crds: tuple[str, ...]
) -> AsyncIterator[Apis]:
    async with AsyncExitStack() as stack:

        async def another(url: str = "", *, away: bool = False, **changes: Any) -> Api:
            wanted: dict[str, Any] = {
                "nats": Nats(
                    urls=(url or nats_account.url,), streams=SMALL, request_timeout_seconds=0.5 if away else 30
                ),
                "namespaces": Namespaces(system=namespace, stock=f"{namespace}-stock", units=(namespace,)),
                "invocations": Invocations(sync_wait_seconds=60, store_seconds=10),
            }
            settings = RuntimeAPISettings(**(wanted | changes))
            made = await stack.enter_async_context(replica(control_plane, settings))
            if not away:
                await eventually(lambda: made.services.messaging.problem() is None, "NATS can be used")
            return made

        yield another


@pytest.fixture
async def api(apis: Apis) -> Api:
    return await apis()


@asynccontextmanager
async def replica(plane: ControlPlane, settings: RuntimeAPISettings) -> AsyncIterator[Api]:
    metrics = KubeMetrics(CollectorRegistry())
    async with (
        connect(load_config(plane.kubeconfig), field_manager="test") as client,
        connection(impatient(options_of(settings.nats, "test"))) as nats,
        aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session,
        asyncio.TaskGroup() as tasks,
    ):
        services = build(client, nats, settings, metrics)
        running = [tasks.create_task(_endless(work)) for work in background(services)]
        edge = Edge(
            *(Open(), Rates(0, 1), Journal(metrics.registry), settings.limits), services.unusable, asyncio.Event()
        )
        async with listening(make_app(routes(services), edge), Endpoints(bind="127.0.0.1:0"), 5) as port:
            await eventually(lambda: services.caches.have_synced, "the caches are complete")
            yield Api(services, session, port, metrics.registry)
        for task in running:
            task.cancel()


async def _endless(work: Any) -> None:
    await work()


@dataclass(frozen=True)
class Cluster:
    kube: OtherEyes
    namespace: str

    def function(self, request_id: str = "", **serverless: Any) -> str:
        """Make a function that is stopped, and give its requestID."""
        request_id = request_id or f"f-{uuid.uuid4().hex[:8]}"
        function = {"enabled": True, "requestID": request_id, **serverless}
        self.unit(f"u-{uuid.uuid4().hex[:8]}", serverless=function)
        return request_id

    def unit(self, name: str, **spec: Any) -> None:
        about = ObjectMeta(name=name, namespace=self.namespace)
        self.kube.create(UNIT(metadata=about, spec={"specName": "g1.1", "image": "i", "running": False, **spec}))


@pytest.fixture
def cluster(kube: OtherEyes, namespace: str, platform_crds: tuple[str, ...]) -> Cluster:
    return Cluster(kube, namespace)


@pytest.fixture
def function(cluster: Cluster) -> str:
    return cluster.function()


@pytest.fixture
async def other_side(nats_account: Account) -> AsyncIterator[OtherSide]:
    async with other_side_of(options(nats_account)) as made:
        yield made


@asynccontextmanager
async def other_side_of(how: Options) -> AsyncIterator[OtherSide]:
    async with connection(how) as made:
        await made.wait(60)
        yield OtherSide(made)
