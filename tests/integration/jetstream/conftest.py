"""A connection of the test's own to the shared server, and a server of its own where that is to be killed."""

from collections.abc import AsyncIterator, Iterator

import pytest

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.publisher import Publisher
from localcluster.nats_server import Account, NatsServer, nats_server
from tests.conftest import available

QUICK = Backoff(first=0.05, longest=0.2)


def options(account: Account) -> Options:
    return Options((account.url,), request_timeout=5, backoff=QUICK)


@pytest.fixture
async def connected(nats_account: Account) -> AsyncIterator[Connection]:
    async with connection(options(nats_account)) as made:
        await made.wait(60)
        yield made


@pytest.fixture
def publisher(connected: Connection) -> Publisher:
    return Publisher(connected)


@pytest.fixture
def mortal() -> Iterator[NatsServer]:
    """A server that nobody else uses."""
    with available(nats_server()) as server:
        yield server
