"""Single messages of a stream can be read and deleted without a consumer."""

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import NatsNotFound
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_messages import delete_message, next_message
from tests.integration.jetstream.sample_streams import create_streams
from tests.stored_messages import iter_messages


@pytest.fixture
async def filled_stream(nats_connection: NatsConnection, publisher: Publisher) -> None:
    await create_streams(nats_connection)
    for number in range(1, 7):
        message = OutgoingMessage(
            "work.odd" if number % 2 else "work.even", b"%d" % number, f"m{number}", {"Number": "x: y"}
        )
        await publisher.publish(message)


@pytest.mark.usefixtures("filled_stream")
async def test_messages_of_a_subject_are_returned_in_order(nats_connection: NatsConnection) -> None:
    assert [each.data async for each in iter_messages(nats_connection, "WORK", "work.odd")] == [b"1", b"3", b"5"]
    assert [each.sequence async for each in iter_messages(nats_connection, "WORK", "work.*", 4)] == [4, 5, 6]
    first = await next_message(nats_connection, "WORK", "work.even")
    assert first is not None
    assert (first.subject, first.sequence, first.headers) == (
        *("work.even", 2),
        {"Number": "x: y", "Nats-Msg-Id": "m2"},
    )
    assert first.published_at.tzinfo is not None


@pytest.mark.usefixtures("filled_stream")
async def test_no_message_after_the_last_sequence(nats_connection: NatsConnection) -> None:
    assert await next_message(nats_connection, "WORK", "work.odd", 6) is None
    assert await next_message(nats_connection, "WORK", "work.none") is None
    with pytest.raises(NatsNotFound, match="stream not found"):
        await next_message(nats_connection, "NONE", "work.odd")


@pytest.mark.usefixtures("filled_stream")
async def test_message_is_deleted_once_by_sequence(nats_connection: NatsConnection) -> None:
    for sequence in (3, 1, 6, 2, 4, 5):
        assert [
            await delete_message(nats_connection, "WORK", sequence),
            await delete_message(nats_connection, "WORK", sequence),
        ] == [True, False]
    assert not await delete_message(nats_connection, "WORK", 99)
