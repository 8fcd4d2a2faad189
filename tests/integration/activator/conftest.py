"""Fixtures: a control plane with the CRDs and roles of the platform, a runtime API process, and NATS."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager

import pytest
from lightkube import AsyncClient, KubeConfig

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.control_plane import ControlPlane
from localcluster.nats_server import NatsAccount, NatsServer, temporary_nats_server
from tests.conftest import enter_or_skip
from tests.integration.activator.activator_harness import ActivatorHarness, nats_settings
from tests.integration.controller_manager.conftest import install_manifests
from tests.integration.runtime_api.edge.conftest import RUNTIME_API_USER
from tests.integration.runtime_api.live_platform import LiveApiProcess


@pytest.fixture(scope="package")
def runtime_api(control_plane: ControlPlane, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LiveApiProcess]:
    """A runtime API process. No controller manager runs, so the tests set the phase of stock units themselves."""
    install_manifests(control_plane)
    folder = tmp_path_factory.mktemp("runtime-api")
    replica = LiveApiProcess(folder, control_plane.kubeconfig_for("runtime-api", RUNTIME_API_USER))
    replica.start()
    try:
        replica.wait_ready()
        yield replica
    finally:
        replica.stop()


@asynccontextmanager
async def activator_harness(control: ControlPlane, api: LiveApiProcess, url: str) -> AsyncIterator[ActivatorHarness]:
    topology = stream_topology(nats_settings(url))
    kube = AsyncClient(config=KubeConfig.from_file(control.kubeconfig))
    async with connect_nats(ConnectionOptions((url,), backoff=Backoff(initial_seconds=0.05, max_seconds=0.2))) as nats:
        await ensure_with_retry(nats, topology.streams, [topology.record_bucket], topology.shared_consumers())
        harness = ActivatorHarness(control, kube, nats, topology, url, api.url(""))
        async with harness.running_result_store():
            yield harness
        await harness.delete_all_units()
    await kube.close()


@pytest.fixture
async def harness(
    control_plane: ControlPlane, runtime_api: LiveApiProcess, nats_account: NatsAccount
) -> AsyncIterator[ActivatorHarness]:
    async with activator_harness(control_plane, runtime_api, nats_account.url) as harness:
        yield harness


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    """A NATS server that only this test uses, so the test can restart it."""
    with enter_or_skip(temporary_nats_server()) as server:
        yield server


@pytest.fixture
async def restartable_harness(
    control_plane: ControlPlane, runtime_api: LiveApiProcess, own_nats_server: NatsServer
) -> AsyncIterator[ActivatorHarness]:
    async with activator_harness(control_plane, runtime_api, own_nats_server.create_account().url) as harness:
        yield harness
