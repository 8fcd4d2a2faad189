"""A NATS server with a full disk loses no acknowledged message, and its liveness probe in `config/nats` restarts it."""

import asyncio
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest

from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.publisher import Publisher
from localcluster.nats_server import NatsServer, temporary_nats_server
from localcluster.tmpfs_disk import TmpfsDisk, tmpfs_command
from tests.conftest import enter_or_skip
from tests.integration.conftest import nats_liveness_path
from tests.integration.jetstream.conftest import account_options
from tests.integration.jetstream.sample_streams import RecordingHandler, create_streams, running_consumer
from tests.integration.kube.polling import eventually


@pytest.fixture
def nats_on_small_disk() -> Iterator[NatsServer]:
    with enter_or_skip(
        temporary_nats_server(supervisor_wrapper=lambda state: tmpfs_command(state / "jetstream", "16m"))
    ) as server:
        yield server


async def passes_liveness_probe(server: NatsServer) -> bool:
    def probe() -> bool:
        try:
            urllib.request.urlopen(f"http://127.0.0.1:{server.monitor_port}{nats_liveness_path()}", timeout=5).close()
        except urllib.error.HTTPError as error:
            error.close()
            return False
        return True

    return await asyncio.to_thread(probe)


async def test_server_with_a_full_disk_fails_its_probe_and_restarts_without_loss(
    nats_on_small_disk: NatsServer,
) -> None:
    disk = TmpfsDisk(nats_on_small_disk.processes, nats_on_small_disk.state_dir / "jetstream")
    async with connect_nats(account_options(nats_on_small_disk.create_account())) as connection:
        await connection.wait_connected(10)
        await create_streams(connection)
        publisher, stored, number = (
            Publisher(connection, timeout_seconds=1, attempt_timeout_seconds=0.5),
            set[bytes](),
            0,
        )

        async def publish() -> bool:
            nonlocal number
            number += 1
            data = b"%d" % number + bytes(5000)
            try:
                await publisher.publish(OutgoingMessage("work.a", data))
            except JetStreamError:
                return False
            stored.add(data)
            return True

        assert await publish()
        assert await passes_liveness_probe(nats_on_small_disk)
        await asyncio.to_thread(disk.fill)
        while await publish():
            pass
        await asyncio.to_thread(disk.free)
        assert not await publish(), (
            "this server version recovers without a restart: relax the liveness probe in config/nats"
        )
        assert not await passes_liveness_probe(nats_on_small_disk)
        await asyncio.to_thread(nats_on_small_disk.processes.stop, "nats")
        await asyncio.to_thread(nats_on_small_disk.start)
        await connection.wait_connected(20)
        assert await passes_liveness_probe(nats_on_small_disk)
        assert await publish()
        seen = RecordingHandler()
        async with running_consumer(publisher, seen):
            await eventually(lambda: stored <= set(seen.delivery_counts), "all acknowledged messages are delivered")
