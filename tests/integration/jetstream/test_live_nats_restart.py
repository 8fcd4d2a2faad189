"""Publishers, consumers, requests and watches continue after the NATS server is killed and restarted."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.delivery import AckDelivery, Delivery, DeliveryOutcome, OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable
from gpu_runtime.jetstream.inbox import Inbox
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.jetstream.stream_admin import ensure_bucket
from gpu_runtime.jetstream.stream_specs import BucketSpec
from localcluster.nats_server import NatsServer
from tests.bulk_publish import publish_many
from tests.integration.jetstream.conftest import account_options
from tests.integration.jetstream.sample_streams import (
    QUICK_POLICY,
    SHORT_ACK_WAIT_CONSUMER,
    RecordingHandler,
    create_streams,
    running_consumer,
)
from tests.integration.kube.polling import eventually


@pytest.fixture
async def restartable_connection(own_nats_server: NatsServer) -> AsyncIterator[NatsConnection]:
    async with connect_nats(account_options(own_nats_server.create_account())) as connection:
        await connection.wait_connected(60)
        yield connection


def kill(server: NatsServer) -> None:
    server.processes.stop("nats")


async def restart(server: NatsServer) -> None:
    await asyncio.to_thread(kill, server)
    await asyncio.to_thread(server.start)


async def test_restart_loses_no_acknowledged_message(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    await create_streams(restartable_connection)
    publisher = Publisher(restartable_connection, timeout_seconds=60)
    seen, stored, number = RecordingHandler(), set[bytes](), 0
    stop_publishing = asyncio.Event()

    async def publish(writer: int) -> None:
        nonlocal number
        while not stop_publishing.is_set():
            number += 1
            data = b"%d-%d" % (writer, number)
            await publisher.publish(OutgoingMessage("work.a", data, data.decode()))
            stored.add(data)

    writers = [asyncio.create_task(publish(writer)) for writer in range(4)]
    async with running_consumer(publisher, seen, spec=SHORT_ACK_WAIT_CONSUMER):
        for _ in range(3):
            before = len(seen.deliveries)
            await eventually(lambda: len(seen.deliveries) > before + 200, "messages are delivered")  # noqa: B023
            await restart(own_nats_server)
        stop_publishing.set()
        await asyncio.gather(*writers)
        await eventually(lambda: stored <= set(seen.delivery_counts), "every stored message is handled")
    assert restartable_connection.problem() is None


async def test_in_flight_publishes_survive_a_restart(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    await create_streams(restartable_connection)
    publisher = Publisher(restartable_connection, timeout_seconds=60)
    messages = [OutgoingMessage("work.a", b"%d" % number * 200, f"m{number}") for number in range(20_000)]
    publishing = asyncio.create_task(publish_many(publisher, messages))
    restarting = asyncio.create_task(restart(own_nats_server))
    outcomes = await publishing
    await restarting
    assert all(isinstance(each, PubAck) for each in outcomes)
    seen = RecordingHandler()
    async with running_consumer(publisher, seen, replace(QUICK_POLICY, max_in_flight=256), SHORT_ACK_WAIT_CONSUMER):
        # Some messages may be delivered twice, so the number of deliveries is not sufficient.
        await eventually(lambda: len(set(seen.delivery_counts)) >= len(messages), "all messages are delivered")
    assert set(seen.delivery_counts) == {message.data for message in messages}


async def test_publish_times_out_while_the_server_is_down(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    await create_streams(restartable_connection)
    await asyncio.to_thread(kill, own_nats_server)
    await eventually(lambda: not restartable_connection.connected, "the disconnect is detected")
    assert "not connected to NATS" in (restartable_connection.problem() or "")
    publisher = Publisher(restartable_connection, timeout_seconds=0.3, attempt_timeout_seconds=0.2)
    with pytest.raises(NatsUnreachable) as raised:
        await publisher.publish(OutgoingMessage("work.a", b"late", "late"))
    assert not raised.value.sent
    assert all(
        isinstance(each, JetStreamError) for each in await publish_many(publisher, [OutgoingMessage("work.a", b"late")])
    )
    await asyncio.to_thread(own_nats_server.start)
    assert (
        await Publisher(restartable_connection, timeout_seconds=60).publish(OutgoingMessage("work.a", b"1", "1"))
    ).seq == 1  # no message of the timed-out publishes was stored


async def test_pending_request_fails_when_the_connection_is_lost(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    requested, never = asyncio.Event(), asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        requested.set()
        await never.wait()
        return b""

    async with serve_requests(restartable_connection, "q", silent):
        request = asyncio.create_task(restartable_connection.request("q", timeout_seconds=60))
        await requested.wait()
        await asyncio.to_thread(kill, own_nats_server)
        async with asyncio.timeout(60):
            with pytest.raises(NatsUnreachable, match="the connection was lost") as raised:
                await request
        never.set()
    assert raised.value.sent


async def test_subscriptions_are_restored_after_a_restart(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    async def echo(data: bytes) -> bytes:
        return data

    replies = Inbox()
    async with (
        serve_requests(restartable_connection, "q", echo),
        restartable_connection.subscribed(replies.subject, replies.receive),
    ):
        with replies.expect() as expected:
            await restart(own_nats_server)
            await restartable_connection.wait_connected(60)
            assert (await restartable_connection.request("q", b"hello", timeout_seconds=30)).data == b"hello"
            await restartable_connection.publish(expected.subject, b"after the restart")
            async with asyncio.timeout(30):
                assert (await expected.reply).data == b"after the restart"


async def test_watch_reports_writes_after_a_restart(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    spec = BucketSpec(name="STATE", republish_to="changes")
    await ensure_bucket(restartable_connection, spec)
    bucket = KeyValueBucket(restartable_connection, Publisher(restartable_connection, timeout_seconds=60), spec)
    async with bucket.watch("key") as watch:
        assert await anext(watch) is None
        await restart(own_nats_server)
        assert await bucket.create("key", b"1") is not None
        async with asyncio.timeout(60):
            seen = await anext(watch)
        assert seen is not None
        assert seen.value == b"1"


async def test_redelivery_to_the_consumer_that_still_handles_it_is_ignored(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    """The lease ends while the server is down, and the server redelivers to the consumer whose handler still runs."""
    await create_streams(restartable_connection)
    publisher, gate = Publisher(restartable_connection, timeout_seconds=60), asyncio.Event()

    async def long(_delivery: Delivery) -> DeliveryOutcome:
        await gate.wait()
        return AckDelivery()

    seen = RecordingHandler(long)
    await publisher.publish(OutgoingMessage("work.a", b"1", "1"))
    async with running_consumer(publisher, seen, spec=SHORT_ACK_WAIT_CONSUMER) as consumer:
        await eventually(lambda: consumer.in_flight == 1, "the message is in flight")
        await asyncio.to_thread(kill, own_nats_server)
        await asyncio.sleep(1.5 * SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds)
        await asyncio.to_thread(own_nats_server.start)
        await restartable_connection.wait_connected(60)
        await asyncio.sleep(1.5 * SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds)
        gate.set()
        await eventually(lambda: consumer.in_flight == 0, "the message is acknowledged")
    assert len(seen.deliveries) == 1


async def test_message_id_of_an_acknowledged_message_is_lost_by_a_restart(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    """This is why no guarantee depends on message IDs. If this fails, a newer server keeps the IDs over a restart."""
    await create_streams(restartable_connection)
    publisher, message = Publisher(restartable_connection, timeout_seconds=60), OutgoingMessage("work.a", b"1", "id")
    seen = RecordingHandler()
    async with running_consumer(publisher, seen, spec=SHORT_ACK_WAIT_CONSUMER):
        await publisher.publish(message)
        await eventually(lambda: len(seen.deliveries) == 1, "the message is delivered")
    assert (await publisher.publish(message)).duplicate
    await restart(own_nats_server)
    assert not (await publisher.publish(message)).duplicate


async def test_stop_is_fast_while_the_server_is_down(
    own_nats_server: NatsServer, restartable_connection: NatsConnection
) -> None:
    await create_streams(restartable_connection)
    async with asyncio.timeout(30):
        async with running_consumer(Publisher(restartable_connection), RecordingHandler()):
            await asyncio.to_thread(kill, own_nats_server)
            await eventually(lambda: not restartable_connection.connected, "the disconnect is detected")
