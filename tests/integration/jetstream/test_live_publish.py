"""What a publisher says is stored is stored, once; what is not stored is said."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import Full, NoResponders, StreamError, TooLarge
from gpu_runtime.jetstream.publisher import Publisher, Stored
from gpu_runtime.jetstream.stream_admin import ensure_stream, messages_by_subject
from gpu_runtime.jetstream.stream_specs import StreamSpec
from tests.integration.jetstream.streams import make_streams


async def test_a_message_under_one_id_is_stored_once(connected: Connection, publisher: Publisher) -> None:
    await make_streams(connected)
    first = await publisher.publish(Outgoing("work.a", b"1", "id"))
    again = await publisher.publish(Outgoing("work.a", b"1", "id"))
    assert (first.seq, first.duplicate) == (1, False)
    assert (again.seq, again.duplicate) == (1, True)
    assert await messages_by_subject(connected, "WORK", "work.*") == {"work.a": 1}


async def test_many_are_stored_in_their_order(connected: Connection, publisher: Publisher) -> None:
    await make_streams(connected)
    outcomes = await publisher.publish_many((Outgoing("work.a", b"%d" % n, f"n{n}") for n in range(1000)), at_once=64)
    assert [each.seq for each in outcomes if isinstance(each, Stored)] == list(range(1, 1001))


async def test_each_of_many_has_its_own_outcome(connected: Connection) -> None:
    await make_streams(connected)
    impatient = Publisher(connected, patience=3, attempt_seconds=3)
    large = b"x" * (connected_limit(connected) + 1)
    outcomes = await impatient.publish_many(
        [
            Outgoing("work.a", b"1"),
            Outgoing("nobody.listens", b"2"),
            Outgoing("work.a", large),
            Outgoing("work.a", b"4"),
        ]
    )
    kinds = [type(each) if isinstance(each, StreamError) else each.seq for each in outcomes]
    assert kinds == [1, NoResponders, TooLarge, 2]


def connected_limit(connection: Connection) -> int:
    session = connection._session
    assert session is not None
    return session.client.max_payload


async def test_a_subject_without_a_stream_is_said(connected: Connection) -> None:
    with pytest.raises(NoResponders, match=r"nobody answers on nobody\.listens"):
        await Publisher(connected, patience=2).publish(Outgoing("nobody.listens", b""))


async def test_a_publisher_waits_for_a_stream_that_is_about_to_come(
    connected: Connection, publisher: Publisher
) -> None:
    publishing = asyncio.create_task(publisher.publish(Outgoing("work.a", b"1", "id")))
    await make_streams(connected)
    assert (await publishing).seq == 1


@pytest.mark.parametrize("where", ["data", "headers"])
async def test_too_large_a_message_is_refused_before_the_server_hangs_up(
    connected: Connection, publisher: Publisher, where: str
) -> None:
    await make_streams(connected)
    limit = connected_limit(connected)
    lost: list[bool] = []
    connected.listen(lost.append)
    data, headers = (b"x" * (limit + 1), {}) if where == "data" else (b"x" * (limit - 10), {"Name": "value"})
    with pytest.raises(TooLarge, match=f"takes at most {limit}"):
        await publisher.publish(Outgoing("work.a", data, headers=headers))
    assert (await publisher.publish(Outgoing("work.a", b"x" * (limit - 100), "fits"))).seq == 1
    assert lost == []


async def test_a_full_subject_refuses_and_another_does_not(connected: Connection, publisher: Publisher) -> None:
    spec = StreamSpec(name="SMALL", subjects=("s.*",), retention="workqueue", discard="new", max_messages_per_subject=2)
    await ensure_stream(connected, spec)
    for number in range(2):
        await publisher.publish(Outgoing("s.a", b"%d" % number))
    with pytest.raises(Full):
        await publisher.publish(Outgoing("s.a", b"2"))
    assert (await publisher.publish(Outgoing("s.b", b"3"))).seq == 3
