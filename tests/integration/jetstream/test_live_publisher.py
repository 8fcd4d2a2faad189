"""A publisher reports a message as stored only if the stream has stored it once, and reports every failure."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError, NatsMessageTooLarge, NoResponders, StreamFull
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_stream, messages_by_subject
from gpu_runtime.jetstream.stream_specs import StreamSpec
from tests.bulk_publish import publish_many
from tests.integration.jetstream.sample_streams import create_streams


async def test_message_with_the_same_id_is_stored_once(nats_connection: NatsConnection, publisher: Publisher) -> None:
    await create_streams(nats_connection)
    first = await publisher.publish(OutgoingMessage("work.a", b"1", "id"))
    again = await publisher.publish(OutgoingMessage("work.a", b"1", "id"))
    assert (first.seq, first.duplicate) == (1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert await messages_by_subject(nats_connection, "WORK", "work.*") == {"work.a": 1}


async def test_each_of_several_concurrent_messages_has_its_own_outcome(nats_connection: NatsConnection) -> None:
    await create_streams(nats_connection)
    publisher = Publisher(nats_connection, timeout_seconds=3, attempt_timeout_seconds=3)
    large = b"x" * (max_payload_bytes(nats_connection) + 1)
    outcomes = await publish_many(
        publisher,
        [
            OutgoingMessage("work.a", b"1"),
            OutgoingMessage("no.stream", b"2"),
            OutgoingMessage("work.a", large),
            OutgoingMessage("work.a", b"4"),
        ],
    )
    kinds = [type(each) if isinstance(each, JetStreamError) else each.seq for each in outcomes]
    assert kinds == [1, NoResponders, NatsMessageTooLarge, 2]


def max_payload_bytes(connection: NatsConnection) -> int:
    session = connection._session
    assert session is not None
    return session.client.max_payload


async def test_publish_without_a_stream_fails_with_no_responders(nats_connection: NatsConnection) -> None:
    with pytest.raises(NoResponders, match=r"no subscriber on no\.stream"):
        await Publisher(nats_connection, timeout_seconds=2).publish(OutgoingMessage("no.stream", b""))


async def test_publish_waits_for_a_stream_that_is_being_created(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    publishing = asyncio.create_task(publisher.publish(OutgoingMessage("work.a", b"1", "id")))
    await create_streams(nats_connection)
    assert (await publishing).seq == 1


@pytest.mark.parametrize("where", ["data", "headers"])
async def test_oversized_message_is_rejected_before_it_is_sent(
    nats_connection: NatsConnection, publisher: Publisher, where: str
) -> None:
    await create_streams(nats_connection)
    limit = max_payload_bytes(nats_connection)
    notifications: list[bool] = []
    nats_connection.add_listener(notifications.append)
    data, headers = (b"x" * (limit + 1), {}) if where == "data" else (b"x" * (limit - 10), {"Name": "value"})
    with pytest.raises(NatsMessageTooLarge, match=f"accepts at most {limit}"):
        await publisher.publish(OutgoingMessage("work.a", data, headers=headers))
    assert (await publisher.publish(OutgoingMessage("work.a", b"x" * (limit - 100), "fits"))).seq == 1
    assert notifications == []


async def test_full_subject_rejects_and_others_accept(nats_connection: NatsConnection, publisher: Publisher) -> None:
    spec = StreamSpec(name="SMALL", subjects=("s.*",), retention="workqueue", discard="new", max_messages_per_subject=2)
    await ensure_stream(nats_connection, spec)
    for number in range(2):
        await publisher.publish(OutgoingMessage("s.a", b"%d" % number))
    with pytest.raises(StreamFull):
        await publisher.publish(OutgoingMessage("s.a", b"2"))
    assert (await publisher.publish(OutgoingMessage("s.b", b"3"))).seq == 3
