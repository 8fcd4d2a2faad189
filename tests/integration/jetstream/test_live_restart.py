"""The server is killed in the middle, and everything goes on by itself."""

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace

import pytest

from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.delivery import Delivery, Done, Outcome, Outgoing
from gpu_runtime.jetstream.errors import StreamError, Unreachable
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher, Stored
from gpu_runtime.jetstream.request_reply import Replies, answering, ask, reply
from gpu_runtime.jetstream.stream_admin import ensure_bucket
from gpu_runtime.jetstream.stream_specs import BucketSpec
from localcluster.nats_server import NatsServer
from tests.integration.jetstream.conftest import options
from tests.integration.jetstream.streams import BRIEF, QUICK, Seen, consuming, make_streams
from tests.integration.kube.waiting import eventually


@pytest.fixture
async def shaky(mortal: NatsServer) -> AsyncIterator[Connection]:
    async with connection(options(mortal.account())) as made:
        await made.wait(60)
        yield made


def kill(server: NatsServer) -> None:
    server.processes.stop("nats")


async def restart(server: NatsServer) -> None:
    await asyncio.to_thread(kill, server)
    await asyncio.to_thread(server.start)


async def test_nothing_acknowledged_is_lost_and_all_is_handled(mortal: NatsServer, shaky: Connection) -> None:
    await make_streams(shaky)
    publisher = Publisher(shaky, patience=60)
    seen, stored, number = Seen(), set[bytes](), 0
    publishing = asyncio.Event()

    async def publish(who: int) -> None:
        nonlocal number
        while not publishing.is_set():
            number += 1
            data = b"%d-%d" % (who, number)
            await publisher.publish(Outgoing("work.a", data, data.decode()))
            stored.add(data)

    writers = [asyncio.create_task(publish(who)) for who in range(4)]
    async with consuming(publisher, seen, spec=BRIEF):
        for _ in range(3):
            before = len(seen.deliveries)
            await eventually(lambda: len(seen.deliveries) > before + 200, "messages flow")  # noqa: B023
            await restart(mortal)
        publishing.set()
        await asyncio.gather(*writers)
        await eventually(lambda: stored <= set(seen.data), "every stored message is handled")
    assert shaky.problem() is None


async def test_many_in_flight_survive_the_restart(mortal: NatsServer, shaky: Connection) -> None:
    await make_streams(shaky)
    publisher = Publisher(shaky, patience=60)
    messages = [Outgoing("work.a", b"%d" % number * 200, f"m{number}") for number in range(20_000)]
    publishing = asyncio.create_task(publisher.publish_many(messages))
    restarting = asyncio.create_task(restart(mortal))
    outcomes = await publishing
    await restarting
    assert all(isinstance(each, Stored) for each in outcomes)
    seen = Seen()
    async with consuming(publisher, seen, replace(QUICK, at_once=256), BRIEF):
        # Some may come twice, so their number alone does not tell.
        await eventually(lambda: len(set(seen.data)) >= len(messages), "all are there")
    assert set(seen.data) == {message.data for message in messages}


async def test_an_impatient_publisher_says_that_it_could_not(mortal: NatsServer, shaky: Connection) -> None:
    await make_streams(shaky)
    await asyncio.to_thread(kill, mortal)
    await eventually(lambda: not shaky.connected, "the loss is noticed")
    assert "not connected to NATS" in (shaky.problem() or "")
    publisher = Publisher(shaky, patience=0.3, attempt_seconds=0.2)
    with pytest.raises(Unreachable) as raised:
        await publisher.publish(Outgoing("work.a", b"late", "late"))
    assert not raised.value.sent
    assert all(isinstance(each, StreamError) for each in await publisher.publish_many([Outgoing("work.a", b"late")]))
    await asyncio.to_thread(mortal.start)
    assert (await Publisher(shaky, patience=60).publish(Outgoing("work.a", b"1", "1"))).seq == 1  # nothing came late


async def test_an_answer_that_was_under_way_is_known_to_be_lost(mortal: NatsServer, shaky: Connection) -> None:
    asked, never = asyncio.Event(), asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        asked.set()
        await never.wait()
        return b""

    async with answering(shaky, "q", silent):
        asking = asyncio.create_task(ask(shaky, "q", b"", 60))
        await asked.wait()
        await asyncio.to_thread(kill, mortal)
        async with asyncio.timeout(60):
            with pytest.raises(Unreachable, match="the connection was lost") as raised:
                await asking
        never.set()
    assert raised.value.sent


async def test_what_was_subscribed_is_subscribed_again(mortal: NatsServer, shaky: Connection) -> None:
    async def echo(data: bytes) -> bytes:
        return data

    async with answering(shaky, "q", echo), Replies().listening(shaky) as replies:
        with replies.expect() as expected:
            await restart(mortal)
            await shaky.wait(60)
            assert await ask(shaky, "q", b"hello", 30) == b"hello"
            await shaky.publish(expected.subject, b"late but there")
            assert await reply(expected, 30) == b"late but there"


async def test_a_watch_sees_what_was_written_after_the_restart(mortal: NatsServer, shaky: Connection) -> None:
    spec = BucketSpec(name="STATE", told_on="told")
    await ensure_bucket(shaky, spec)
    bucket = Bucket(shaky, Publisher(shaky, patience=60), spec)
    async with bucket.watch("key") as watch:
        assert await anext(watch) is None
        await restart(mortal)
        assert await bucket.create("key", b"1") is not None
        async with asyncio.timeout(60):
            seen = await anext(watch)
        assert seen is not None
        assert seen.value == b"1"


async def test_a_handler_that_outlives_the_server_is_not_run_a_second_time_here(
    mortal: NatsServer, shaky: Connection
) -> None:
    """Its lease ends while nobody can extend it, and the message comes again to the one that has it in hand."""
    await make_streams(shaky)
    publisher, gate = Publisher(shaky, patience=60), asyncio.Event()

    async def long(_delivery: Delivery) -> Outcome:
        await gate.wait()
        return Done()

    seen = Seen(long)
    await publisher.publish(Outgoing("work.a", b"1", "1"))
    async with consuming(publisher, seen, spec=BRIEF) as consumption:
        await eventually(lambda: consumption.in_flight == 1, "it is in hand")
        await asyncio.to_thread(kill, mortal)
        await asyncio.sleep(1.5 * BRIEF.ack_wait)
        await asyncio.to_thread(mortal.start)
        await shaky.wait(60)
        await asyncio.sleep(1.5 * BRIEF.ack_wait)
        gate.set()
        await eventually(lambda: consumption.in_flight == 0, "it is done")
    assert len(seen.deliveries) == 1


async def test_an_id_is_forgotten_by_a_restart_once_its_message_is_taken(mortal: NatsServer, shaky: Connection) -> None:
    """Why no promise rests on message IDs. Should this ever fail, the server has learned something."""
    await make_streams(shaky)
    publisher, message = Publisher(shaky, patience=60), Outgoing("work.a", b"1", "id")
    seen = Seen()
    async with consuming(publisher, seen, spec=BRIEF):
        await publisher.publish(message)
        await eventually(lambda: len(seen.deliveries) == 1, "it is taken")
    assert (await publisher.publish(message)).duplicate
    await restart(mortal)
    assert not (await publisher.publish(message)).duplicate


async def test_a_stop_while_the_server_is_away_is_quick(mortal: NatsServer, shaky: Connection) -> None:
    await make_streams(shaky)
    async with asyncio.timeout(30):
        async with consuming(Publisher(shaky), Seen()):
            await asyncio.to_thread(kill, mortal)
            await eventually(lambda: not shaky.connected, "the loss is noticed")
