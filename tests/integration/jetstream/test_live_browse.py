"""What a stream holds can be looked at and taken out, message by message."""

import pytest

from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import NotFound
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_messages import first_kept, kept, remove
from tests.integration.jetstream.streams import make_streams


@pytest.fixture
async def filled(connected: Connection, publisher: Publisher) -> None:
    await make_streams(connected)
    for number in range(1, 7):
        message = Outgoing("work.odd" if number % 2 else "work.even", b"%d" % number, f"m{number}", {"Number": "x: y"})
        await publisher.publish(message)


@pytest.mark.usefixtures("filled")
async def test_messages_of_a_subject_come_in_their_order(connected: Connection) -> None:
    assert [each.data async for each in kept(connected, "WORK", "work.odd")] == [b"1", b"3", b"5"]
    assert [each.sequence async for each in kept(connected, "WORK", "work.*", 4)] == [4, 5, 6]
    first = await first_kept(connected, "WORK", "work.even")
    assert first is not None
    assert (first.subject, first.sequence, first.headers) == (
        *("work.even", 2),
        {"Number": "x: y", "Nats-Msg-Id": "m2"},
    )
    assert first.stored_at.tzinfo is not None


@pytest.mark.usefixtures("filled")
async def test_after_the_last_there_is_none(connected: Connection) -> None:
    assert await first_kept(connected, "WORK", "work.odd", 6) is None
    assert await first_kept(connected, "WORK", "work.none") is None
    with pytest.raises(NotFound, match="stream not found"):
        await first_kept(connected, "NONE", "work.odd")


@pytest.mark.usefixtures("filled")
async def test_a_message_is_taken_out_once_wherever_it_lies(connected: Connection) -> None:
    for sequence in (3, 1, 6, 2, 4, 5):
        assert [await remove(connected, "WORK", sequence), await remove(connected, "WORK", sequence)] == [True, False]
    assert not await remove(connected, "WORK", 99)
