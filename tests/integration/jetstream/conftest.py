"""A connection per test to the shared NATS server, and a separate server for tests that stop it."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.publisher import Publisher
from localcluster.nats_server import NatsAccount, NatsServer, temporary_nats_server
from tests.conftest import enter_or_skip

QUICK_BACKOFF = Backoff(initial_seconds=0.05, max_seconds=0.2)


def account_options(account: NatsAccount) -> ConnectionOptions:
    return ConnectionOptions((account.url,), request_timeout=5, backoff=QUICK_BACKOFF)


@pytest.fixture
async def nats_connection(nats_account: NatsAccount) -> AsyncIterator[NatsConnection]:
    async with connect_nats(account_options(nats_account)) as connection:
        await connection.wait_connected(60)
        yield connection


@pytest.fixture
def publisher(nats_connection: NatsConnection) -> Publisher:
    return Publisher(nats_connection)


@pytest.fixture
def own_nats_server() -> Iterator[NatsServer]:
    """A server that only one test uses."""
    with enter_or_skip(temporary_nats_server()) as server:
        yield server
