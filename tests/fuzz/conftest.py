"""The whole platform, once per run, for what is fuzzed from outside."""

from collections.abc import Iterator

import pytest

from localcluster.nats_server import NatsServer
from tests.integration.runtime_api.live import Platform, running_platform


@pytest.fixture(scope="session")
def platform(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[Platform]:
    with running_platform(tmp_path_factory.mktemp("platform"), nats.account(), replicas=2) as running:
        yield running
