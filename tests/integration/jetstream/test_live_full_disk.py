"""A server whose disk was full: what it acknowledged is there, and the probe of `config/nats` brings it back."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.publisher import Publisher
from localcluster.nats_server import NatsServer, nats_server
from localcluster.tmpfs_disk import Disk, on_a_disk
from tests.conftest import available
from tests.integration.conftest import nats_liveness
from tests.integration.jetstream.conftest import options
from tests.integration.jetstream.streams import Seen, consuming, make_streams
from tests.integration.kube.waiting import eventually


@pytest.fixture
def cramped() -> Iterator[NatsServer]:
    with available(nats_server(wrap=lambda state: on_a_disk(state / "jetstream", "16m"))) as server:
        yield server


async def lives(server: NatsServer) -> bool:
    def ask() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.monitor}{nats_liveness()}", timeout=5).close()
        except urllib.error.HTTPError as refusal:
            refusal.close()
            return False
        return True

    return await asyncio.to_thread(ask)


async def test_a_server_that_met_a_full_disk_fails_its_probe_and_starts_anew_with_all_it_had(
    cramped: NatsServer,
) -> None:
    disk = Disk(cramped.processes, cramped.state / "jetstream")
    async with connection(options(cramped.account())) as connected:
        await connected.wait(10)
        await make_streams(connected)
        publisher, stored, number = Publisher(connected, patience=1, attempt_seconds=0.5), set[bytes](), 0

        async def publish() -> bool:
            nonlocal number
            number += 1
            data = b"%d" % number + bytes(5000)
            try:
                await publisher.publish(Outgoing("work.a", data))
            except StreamError:
                return False
            stored.add(data)
            return True

        assert await publish()
        assert await lives(cramped)
        await asyncio.to_thread(disk.fill)
        while await publish():
            pass
        await asyncio.to_thread(disk.free)
        assert not await publish(), "the server has learned to go on by itself: the probe may be gentler"
        assert not await lives(cramped)
        await asyncio.to_thread(cramped.processes.stop, "nats")
        await asyncio.to_thread(cramped.start)
        await connected.wait(20)
        assert await lives(cramped)
        assert await publish()
        seen = Seen()
        async with consuming(publisher, seen):
            await eventually(lambda: stored <= set(seen.data), "everything that was acknowledged is there")
