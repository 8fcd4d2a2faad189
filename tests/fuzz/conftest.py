"""One running platform per test run, for tests that fuzz it through its interfaces."""

from collections.abc import Iterator

import pytest

from localcluster.nats_server import NatsServer
from tests.integration.runtime_api.live_platform import LivePlatform, running_live_platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[LivePlatform]:
    with running_live_platform(tmp_path_factory.mktemp("platform"), nats.create_account(), replicas=2) as running:
        yield running
