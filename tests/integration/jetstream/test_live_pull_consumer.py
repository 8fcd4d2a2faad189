"""The pull consumer: delivery, redelivery, ack wait extension, dead letters, limits, pause and shutdown."""

import asyncio
import signal
import sys
from dataclasses import replace
from itertools import pairwise

import pytest

from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.delivery import (
    AckDelivery,
    DeadLetterDelivery,
    Delivery,
    DeliveryOutcome,
    NakDelivery,
    OutgoingMessage,
)
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.jetstream.puller import PullOptions
from gpu_runtime.jetstream.stream_admin import delete_consumer, ensure_consumer, messages_by_subject
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from localcluster.nats_server import NatsAccount
from tests.bulk_publish import consumer_info, publish_many
from tests.integration.jetstream.conftest import account_options
from tests.integration.jetstream.sample_streams import (
    CONSUMER,
    QUICK_POLICY,
    SHORT_ACK_WAIT_CONSUMER,
    RecordingHandler,
    create_streams,
    dead_letter_with,
    running_consumer,
)
from tests.integration.kube.polling import eventually


@pytest.fixture(autouse=True)
async def streams(nats_connection: NatsConnection) -> None:
    await create_streams(nats_connection)


async def message_count(connection: NatsConnection, stream: str = "WORK") -> int:
    count: int = (await api_request(connection, f"STREAM.INFO.{stream}"))["state"]["messages"]
    return count


async def wait_empty(connection: NatsConnection) -> None:
    async with asyncio.timeout(60):
        while await message_count(connection):  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(0.02)


async def publish_numbers(publisher: Publisher, count: int, subject: str = "work.a") -> None:
    await publish_many(publisher, (OutgoingMessage(subject, b"%d" % number) for number in range(count)))


async def test_messages_are_handled_once_and_acknowledged(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    seen = RecordingHandler()
    await publish_numbers(publisher, 500)
    async with running_consumer(publisher, seen):
        await eventually(lambda: len(seen.deliveries) >= 500, "all messages are delivered")
        await wait_empty(nats_connection)
    assert set(seen.delivery_counts.values()) == {1}


async def test_two_pull_consumers_of_one_durable_share_the_messages(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    gate = asyncio.Event()

    async def waiting(_delivery: Delivery) -> DeliveryOutcome:
        await gate.wait()
        return AckDelivery()

    one, two = RecordingHandler(waiting), RecordingHandler(waiting)
    await publish_numbers(publisher, 16)
    async with running_consumer(publisher, one), running_consumer(publisher, two):
        await eventually(lambda: len(one.deliveries) + len(two.deliveries) == 16, "both consumers are full")
        assert (len(one.deliveries), len(two.deliveries)) == (8, 8)
        gate.set()
        await wait_empty(nats_connection)
    assert set((one.delivery_counts + two.delivery_counts).values()) == {1}


async def test_in_flight_messages_never_exceed_the_limit(nats_connection: NatsConnection, publisher: Publisher) -> None:
    """Messages above the limit stay on the server, so that another consumer can get them."""
    gate, peak, running = asyncio.Event(), 0, 0

    async def counted(_delivery: Delivery) -> DeliveryOutcome:
        nonlocal peak, running
        running += 1
        peak = max(peak, running)
        await gate.wait()
        await asyncio.sleep(0)
        running -= 1
        return AckDelivery()

    seen = RecordingHandler(counted)
    await publish_numbers(publisher, 30)
    async with running_consumer(publisher, seen, replace(QUICK_POLICY, max_in_flight=3)) as consumer:
        await eventually(lambda: consumer.in_flight == 3, "three messages are in flight")
        info = await consumer_info(nats_connection, CONSUMER)
        assert (info["num_ack_pending"], info["num_pending"]) == (3, 27)
        gate.set()
        await wait_empty(nats_connection)
    assert peak == 3


async def test_consumer_resumes_while_a_message_is_in_flight(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    gate = asyncio.Event()

    async def first_waits(delivery: Delivery) -> DeliveryOutcome:
        if delivery.data == b"0":
            await gate.wait()
        return AckDelivery()

    seen = RecordingHandler(first_waits)
    async with running_consumer(publisher, seen) as consumer:
        await publish_numbers(publisher, 1)
        await eventually(lambda: consumer.in_flight == 1, "the first message is in flight")
        consumer.set_paused(True)
        await publisher.publish(OutgoingMessage("work.a", b"1"))
        await wait_no_pulls(nats_connection)
        assert set(seen.delivery_counts) == {b"0"}
        consumer.set_paused(False)
        await eventually(lambda: b"1" in seen.delivery_counts, "the second message is handled")
        assert consumer.in_flight == 1, "the first message is still in flight"
        gate.set()
        await wait_empty(nats_connection)
    assert set(seen.delivery_counts.values()) == {1}


async def wait_no_pulls(connection: NatsConnection) -> None:
    async with asyncio.timeout(60):
        while (await consumer_info(connection, CONSUMER))["num_waiting"]:  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(0.02)


async def test_new_message_is_delivered_to_a_waiting_pull(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    seen = RecordingHandler()
    async with running_consumer(
        publisher, seen, replace(QUICK_POLICY, max_in_flight=1, pull_options=PullOptions(300, heartbeat=0.5))
    ):
        for number in range(1, 20):
            await publisher.publish(OutgoingMessage("work.a", b"%d" % number))
            # Each delivery happens long before the pull request expires.
            await eventually(lambda: len(seen.deliveries) == number, "the message is delivered")  # noqa: B023


@pytest.mark.parametrize("status", ["404", "409", "100", "503", "\xff"])
async def test_message_with_a_status_header_is_handled_as_a_message(
    nats_connection: NatsConnection, publisher: Publisher, status: str
) -> None:
    seen = RecordingHandler()
    await publisher.publish(OutgoingMessage("work.a", b"", headers={"Status": status, "Nats-Pending-Messages": "8"}))
    await publisher.publish(OutgoingMessage("work.a", b"next"))
    async with running_consumer(publisher, seen):
        await wait_empty(nats_connection)
    assert seen.delivery_counts == {b"": 1, b"next": 1}


async def test_idle_consumer_sends_no_extra_pulls(nats_connection: NatsConnection, publisher: Publisher) -> None:
    async with running_consumer(publisher, RecordingHandler()):
        await eventually(lambda: nats_connection.connected, "connected")
        async with asyncio.timeout(60):
            while True:  # until its one pull request waits on the server
                try:
                    if (await consumer_info(nats_connection, CONSUMER))["num_waiting"] == 1:
                        break
                except Exception:  # noqa: BLE001, S110 - the consumer may not exist yet
                    pass
                await asyncio.sleep(0.02)
        session = nats_connection._session
        assert session is not None
        before = session.client.stats["out_msgs"]
        await asyncio.sleep(1.2)  # two heartbeats of the server
        assert session.client.stats["out_msgs"] == before


async def test_handler_three_times_as_long_as_the_ack_wait_runs_once(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    async def slow(_delivery: Delivery) -> DeliveryOutcome:
        await asyncio.sleep(3 * SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds)
        return AckDelivery()

    one, two = RecordingHandler(slow), RecordingHandler(slow)
    await publish_numbers(publisher, 4)
    async with (
        running_consumer(publisher, one, spec=SHORT_ACK_WAIT_CONSUMER),
        running_consumer(publisher, two, spec=SHORT_ACK_WAIT_CONSUMER),
    ):
        await wait_empty(nats_connection)
    assert set((one.delivery_counts + two.delivery_counts).values()) == {1}


async def test_nak_delay_is_respected(nats_connection: NatsConnection, publisher: Publisher) -> None:
    times: list[float] = []

    async def flaky(delivery: Delivery) -> DeliveryOutcome:
        times.append(asyncio.get_running_loop().time())
        return NakDelivery("not yet", delay=0.4) if delivery.delivery_count < 3 else AckDelivery()

    seen = RecordingHandler(flaky)
    await publish_numbers(publisher, 1)
    async with running_consumer(publisher, seen):
        await wait_empty(nats_connection)
    assert [each.delivery_count for each in seen.deliveries] == [1, 2, 3]
    assert all(0.39 <= later - earlier < CONSUMER.ack_wait_seconds for earlier, later in pairwise(times))


async def test_failing_handler_is_redelivered_with_backoff(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    times: list[float] = []

    async def broken(delivery: Delivery) -> DeliveryOutcome:
        times.append(asyncio.get_running_loop().time())
        if delivery.delivery_count < 4:
            raise RuntimeError("boom")
        return AckDelivery()

    await publish_numbers(publisher, 1)
    async with running_consumer(publisher, RecordingHandler(broken)):
        await wait_empty(nats_connection)
    delays = [later - earlier for earlier, later in pairwise(times)]
    assert len(delays) == 3
    assert all(delay >= expected - 0.01 for delay, expected in zip(delays, (0.05, 0.1, 0.2), strict=True))


async def dead_letters(connection: NatsConnection, publisher: Publisher) -> list[Delivery]:
    seen = RecordingHandler()
    async with running_consumer(publisher, seen, spec=ConsumerSpec("DEAD", "reader")):
        count = await message_count(connection, "DEAD")
        await eventually(lambda: len(seen.deliveries) == count, "the dead letters are read")
    return seen.deliveries


async def test_message_at_max_deliveries_is_dead_lettered_unchanged(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    async def never(_delivery: Delivery) -> DeliveryOutcome:
        return NakDelivery("still broken", delay=0.01)

    seen = RecordingHandler(never)
    original = bytes(range(256))
    await publisher.publish(OutgoingMessage("work.a", original))
    async with running_consumer(publisher, seen):
        await wait_empty(nats_connection)
    assert [each.delivery_count for each in seen.deliveries] == [1, 2, 3, 4, 5]
    (letter,) = await dead_letters(nats_connection, publisher)
    assert letter.data == original
    assert letter.headers["Reason"] == "dead-lettered after 5 deliveries; last failure: still broken"


async def test_message_that_kills_its_consumer_is_dead_lettered_at_receipt(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    """The consumer cannot report the failure, so only the delivery count of the server shows it."""
    await publish_numbers(publisher, 1)
    policy = replace(QUICK_POLICY, max_deliveries=2)
    seen = RecordingHandler()

    async def never_return(_delivery: Delivery) -> DeliveryOutcome:
        await asyncio.Event().wait()
        return AckDelivery()

    seen.respond = never_return
    for _ in range(2):
        running = asyncio.create_task(
            PullConsumer(publisher.connection, CONSUMER, seen, dead_letter_with(publisher), policy).run(asyncio.Event())
        )
        before = len(seen.deliveries)
        await eventually(lambda: len(seen.deliveries) > before, "the message is delivered")  # noqa: B023
        running.cancel()
        await asyncio.wait({running})
    async with running_consumer(publisher, seen, policy):
        await wait_empty(nats_connection)
    assert [each.delivery_count for each in seen.deliveries] == [1, 2]
    (letter,) = await dead_letters(nats_connection, publisher)
    assert letter.headers["Reason"] == "dead-lettered after 2 deliveries; the last one ended without an outcome"


async def test_dead_letter_outcome_is_not_redelivered(nats_connection: NatsConnection, publisher: Publisher) -> None:
    async def unrecoverable(_delivery: Delivery) -> DeliveryOutcome:
        return DeadLetterDelivery("unreadable", failure_class="bad_message")

    seen = RecordingHandler(unrecoverable)
    await publish_numbers(publisher, 1)
    async with running_consumer(publisher, seen):
        await wait_empty(nats_connection)
    assert len(seen.deliveries) == 1
    assert await message_count(nats_connection, "DEAD") == 1


async def test_message_stays_in_the_stream_if_dead_lettering_fails(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    async def unrecoverable(_delivery: Delivery) -> DeliveryOutcome:
        return DeadLetterDelivery("unreadable")

    await api_request(nats_connection, "STREAM.DELETE.DEAD")
    short_timeout_publisher = Publisher(nats_connection, timeout_seconds=0.1)
    seen = RecordingHandler(unrecoverable)
    await publish_numbers(publisher, 1)
    async with running_consumer(short_timeout_publisher, seen):
        await eventually(lambda: len(seen.deliveries) >= 2, "the message is redelivered")
        assert await message_count(nats_connection) == 1
        await create_streams(nats_connection)
        await wait_empty(nats_connection)
    assert await message_count(nats_connection, "DEAD") == 1


async def test_stop_finishes_in_flight_messages_and_pulls_no_more(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    gate = asyncio.Event()

    async def waiting(_delivery: Delivery) -> DeliveryOutcome:
        await gate.wait()
        return AckDelivery()

    seen, stopping = RecordingHandler(waiting), asyncio.Event()
    await publish_numbers(publisher, 20)
    consumer = PullConsumer(
        publisher.connection, SHORT_ACK_WAIT_CONSUMER, seen, dead_letter_with(publisher), QUICK_POLICY
    )
    running = asyncio.create_task(consumer.run(stopping))
    await eventually(lambda: consumer.in_flight == 8, "the consumer is full")
    stopping.set()
    await asyncio.sleep(2 * SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds)
    assert not running.done()
    gate.set()
    await running
    assert len(seen.deliveries) == 8
    async with asyncio.timeout(60):
        while await message_count(nats_connection) > 12:  # noqa: ASYNC110 - the server applies acks with a delay
            await asyncio.sleep(0.02)
    assert await message_count(nats_connection) == 12
    rest = RecordingHandler()
    async with running_consumer(publisher, rest, spec=SHORT_ACK_WAIT_CONSUMER):
        await wait_empty(nats_connection)
    assert {each.delivery_count for each in rest.deliveries} == {1}


async def test_cancelled_consumer_naks_its_messages_immediately(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    spec = replace(CONSUMER, ack_wait_seconds=600)

    async def endless(_delivery: Delivery) -> DeliveryOutcome:
        await asyncio.Event().wait()
        return AckDelivery()

    seen = RecordingHandler(endless)
    await publish_numbers(publisher, 3)
    running = asyncio.create_task(
        PullConsumer(publisher.connection, spec, seen, dead_letter_with(publisher), QUICK_POLICY).run(asyncio.Event())
    )
    await eventually(lambda: len(seen.deliveries) == 3, "all messages are in flight")
    running.cancel()
    await asyncio.wait({running})
    rest = RecordingHandler()
    async with running_consumer(publisher, rest, spec=spec):
        await wait_empty(nats_connection)  # within one minute, not after the ack wait of ten minutes
    assert {each.delivery_count for each in rest.deliveries} == {2}


KILLED_CONSUMER_SOURCE = """
import asyncio, sys
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, PullConsumer
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

async def hang(delivery):
    print(delivery.data.decode(), flush=True)
    await asyncio.Event().wait()

async def main():
    async with connect_nats(ConnectionOptions((sys.argv[1],))) as connection:
        await connection.wait_connected(60)
        spec = ConsumerSpec("WORK", "takers", ack_wait_seconds=float(sys.argv[2]))
        options = ConsumeOptions(max_in_flight=4)
        await PullConsumer(connection, spec, hang, None, options).run(asyncio.Event())

asyncio.run(main())
"""


async def test_messages_of_a_killed_process_are_redelivered_within_the_ack_wait(
    nats_connection: NatsConnection, publisher: Publisher, nats_account: NatsAccount
) -> None:
    await publish_numbers(publisher, 4)
    consumer_process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        KILLED_CONSUMER_SOURCE,
        nats_account.url,
        str(SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds),
        stdout=asyncio.subprocess.PIPE,
    )
    assert consumer_process.stdout is not None
    received = [await asyncio.wait_for(consumer_process.stdout.readline(), 60) for _ in range(4)]
    assert sorted(received) == [b"0\n", b"1\n", b"2\n", b"3\n"]
    await asyncio.sleep(2 * SHORT_ACK_WAIT_CONSUMER.ack_wait_seconds)  # the process extends its leases meanwhile
    seen = RecordingHandler()
    async with running_consumer(publisher, seen, spec=SHORT_ACK_WAIT_CONSUMER):
        assert seen.deliveries == []
        consumer_process.send_signal(signal.SIGKILL)
        await consumer_process.wait()
        await wait_empty(nats_connection)
    assert {each.delivery_count for each in seen.deliveries} == {2}
    assert len(seen.deliveries) == 4


async def test_deleted_durable_consumer_is_recreated(nats_connection: NatsConnection, publisher: Publisher) -> None:
    seen = RecordingHandler()
    async with running_consumer(publisher, seen) as consumer:
        await publish_numbers(publisher, 1)
        await wait_empty(nats_connection)
        await delete_consumer(nats_connection, CONSUMER)
        await publish_numbers(publisher, 1)
        await wait_empty(nats_connection)
        assert consumer.problem() is None
    assert len(seen.deliveries) == 2


async def test_consumer_reports_and_waits_for_a_missing_stream(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    await api_request(nats_connection, "STREAM.DELETE.WORK")
    seen = RecordingHandler()
    async with running_consumer(publisher, seen) as consumer:
        await eventually(lambda: "stream not found" in (consumer.problem() or ""), "the problem is reported")
        await create_streams(nats_connection)
        await publish_numbers(publisher, 1)
        await wait_empty(nats_connection)
        assert consumer.problem() is None


async def test_redeliveries_of_one_subject_do_not_block_another(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    async def nak_cold(delivery: Delivery) -> DeliveryOutcome:
        return NakDelivery("cold", delay=60) if delivery.subject == "work.cold" else AckDelivery()

    seen = RecordingHandler(nak_cold)
    await publish_numbers(publisher, 1500, "work.cold")
    await publish_numbers(publisher, 10, "work.warm")
    async with running_consumer(publisher, seen):
        async with asyncio.timeout(60):
            while "work.warm" in await messages_by_subject(nats_connection, "WORK", "work.*"):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_closed_consumer_leaves_no_task(nats_account: NatsAccount) -> None:
    before = asyncio.all_tasks()
    async with connect_nats(account_options(nats_account)) as connection:
        await connection.wait_connected(60)
        await create_streams(connection)
        await ensure_consumer(connection, CONSUMER)
        publisher = Publisher(connection)
        seen = RecordingHandler()
        async with running_consumer(publisher, seen):
            await publish_numbers(publisher, 20)
            await wait_empty(connection)
    await eventually(lambda: asyncio.all_tasks() == before, "all tasks have ended")
