"""The whole platform, once per run, for whoever asks for it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from localcluster.nats_server import NatsServer
from tests.integration.runtime_api.live import Caller, Platform, caller, running_platform


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[Platform]:
    with running_platform(tmp_path_factory.mktemp("platform"), nats.account()) as running:
        yield running


@pytest.fixture
async def client(platform: Platform) -> AsyncIterator[Caller]:
    async with caller(platform) as asking:
        yield asking
