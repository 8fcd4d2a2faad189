"""A control plane with the platform's kinds and roles, one runtime API on it, and NATS: what an activator needs."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from lightkube import AsyncClient, KubeConfig

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.process.nats_setup import topology_of
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import Account, NatsServer, nats_server
from tests.conftest import available
from tests.integration.activator.plane import Plane, nats_settings
from tests.integration.controller_manager.conftest import install
from tests.integration.runtime_api.edge.conftest import IDENTITY as API
from tests.integration.runtime_api.live import LiveReplica


@pytest.fixture(scope="package")
def stock_api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveReplica]:
    """A runtime API as it runs. There is no controller manager: tests say themselves which stock is Ready."""
    install(control_plane)
    folder, identity = tmp_path_factory.mktemp("runtime-api"), control_plane.kubeconfig_for("runtime-api", API)
    replica = LiveReplica(folder, identity)
    replica.start()
    try:
        replica.wait_ready()
        yield replica
    finally:
        replica.end()


@asynccontextmanager
async def plane_on(control: ControlPlane, api: LiveReplica, url: str) -> AsyncIterator[Plane]:
    topology = topology_of(nats_settings(url))
    kube = AsyncClient(config=KubeConfig.from_file(control.kubeconfig))
    async with connection(Options((url,), backoff=Backoff(first=0.05, longest=0.2))) as nats:
        await ensure_until_done(nats, topology.streams, [topology.state], topology.consumers())
        made = Plane(control, kube, nats, topology, url, api.url(""))
        async with made.storing():
            yield made
        await made.clear()
    await kube.close()


@pytest.fixture
async def plane(control_plane: ControlPlane, stock_api: LiveReplica, nats_account: Account) -> AsyncIterator[Plane]:
    async with plane_on(control_plane, stock_api, nats_account.url) as made:
        yield made


@pytest.fixture
def mortal() -> Iterator[NatsServer]:
    """A server that nobody else uses."""
    with available(nats_server()) as server:
        yield server


@pytest.fixture
async def shaky_plane(control_plane: ControlPlane, stock_api: LiveReplica, mortal: NatsServer) -> AsyncIterator[Plane]:
    async with plane_on(control_plane, stock_api, mortal.account().url) as made:
        yield made
