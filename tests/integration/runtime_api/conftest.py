"""Fixtures: the whole platform, started once per test run, and a client of it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from localcluster.nats_server import NatsServer
from tests.integration.runtime_api.live_platform import ApiCaller, LivePlatform, api_caller, running_live_platform


@pytest.fixture(scope="package")
def platform(tmp_path_factory: pytest.TempPathFactory, nats: NatsServer) -> Iterator[LivePlatform]:
    with running_live_platform(tmp_path_factory.mktemp("platform"), nats.create_account()) as running:
        yield running


@pytest.fixture
async def api_client(platform: LivePlatform) -> AsyncIterator[ApiCaller]:
    async with api_caller(platform) as caller:
        yield caller
