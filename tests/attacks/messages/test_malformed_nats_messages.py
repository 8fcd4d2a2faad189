"""A client publishes messages that the NATS server accepts, but that are malformed.

The NATS library once stopped reading from the connection, or gave a message to another subscription. One stored message
was then enough to stop a process, because the server redelivers the message after each reconnect.
"""

import asyncio
import json
from collections.abc import AsyncIterator
from urllib.parse import urlsplit

import pytest
from nats.aio.msg import Msg

from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.publisher import Publisher
from localcluster.nats_server import NatsAccount
from tests.integration.jetstream.conftest import account_options
from tests.integration.jetstream.sample_streams import RecordingHandler, create_streams, running_consumer
from tests.integration.kube.polling import eventually

MALFORMED = {
    "headers without a line break": b"HPUB work.a 8 9\r\nNATS/1.0x\r\n",
    "headers with a status that is no text": b"HPUB work.a 16 17\r\nNATS/1.0 \xff\xff\xff\r\n\r\nx\r\n",
    "headers with a description that is no text": b"HPUB work.a 20 21\r\nNATS/1.0 100 \xff\xff\xff\r\n\r\nx\r\n",
    "headers with a line that is no text": b"HPUB work.a 18 19\r\nNATS/1.0\r\n\xff: \xff\r\n\r\nx\r\n",
    "a vertical tab in the subject": b"PUB work.\x0ba 1\r\nx\r\n",
    "form feeds and a number in the subject": b"PUB work.\x0c2\x0cb 1\r\nx\r\n",
    "a subject that is no text": b"PUB work.\xff\xfe 1\r\nx\r\n",
}


@pytest.fixture
async def connection(nats_account: NatsAccount) -> AsyncIterator[NatsConnection]:
    async with connect_nats(account_options(nats_account)) as connection:
        await connection.wait_connected(30)
        yield connection


async def send_raw(account: NatsAccount, command: bytes) -> None:
    """Send a protocol command, and wait until the server has processed it."""
    server = urlsplit(account.url)
    options = {"verbose": False, "pedantic": False, "headers": True, "user": server.username, "pass": server.password}
    reader, writer = await asyncio.open_connection(server.hostname, server.port)
    await reader.readline()
    writer.write(b"CONNECT %s\r\n%sPING\r\n" % (json.dumps(options).encode(), command))
    assert await asyncio.wait_for(reader.readline(), 10) == b"PONG\r\n"
    writer.close()


@pytest.mark.parametrize("command", MALFORMED.values(), ids=MALFORMED)
async def test_malformed_message_does_not_end_the_connection_or_reach_another_subscription(
    nats_account: NatsAccount, connection: NatsConnection, command: bytes
) -> None:
    received: list[Msg] = []
    others: list[Msg] = []
    disconnects: list[bool] = []
    connection.add_listener(disconnects.append)
    async with connection.subscribed("other", others.append), connection.subscribed("work.>", received.append):
        await connection.request("$JS.API.INFO")  # the server has processed the subscriptions
        await send_raw(nats_account, command)
        await connection.publish("work.last", b"last")
        await eventually(
            lambda: bool(received) and received[-1].data == b"last", "the next message arrives", timeout=10
        )
    assert len(received) == 2
    assert (others, disconnects) == ([], [])


@pytest.mark.parametrize("command", MALFORMED.values(), ids=MALFORMED)
async def test_stored_malformed_message_is_delivered_and_acknowledged(
    nats_account: NatsAccount, connection: NatsConnection, command: bytes
) -> None:
    await create_streams(connection)
    handler, publisher = RecordingHandler(), Publisher(connection)
    await send_raw(nats_account, command)
    await publisher.publish(OutgoingMessage("work.a", b"last"))
    async with running_consumer(publisher, handler):
        await eventually(lambda: len(handler.deliveries) == 2, "both messages are handled", timeout=10)
    assert [each.delivery_count for each in handler.deliveries] == [1, 1]
