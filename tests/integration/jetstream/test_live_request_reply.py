"""Questions are answered by one of a group; nobody there and no answer in time are two different things."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import NatsUnreachable, NoResponders
from gpu_runtime.jetstream.request_reply import ReplyInbox, send_request, serve_requests, wait_for_reply


async def doubled(data: bytes) -> bytes:
    return data * 2


async def test_request_is_answered_by_one_member_of_the_queue_group(nats_connection: NatsConnection) -> None:
    counts = [0, 0]

    async def answer(which: int, data: bytes) -> bytes:
        counts[which] += 1
        return data * 2

    async with (
        serve_requests(nats_connection, "q", lambda data: answer(0, data), queue_group="g"),
        serve_requests(nats_connection, "q", lambda data: answer(1, data), queue_group="g"),
    ):
        answers = await asyncio.gather(*(send_request(nats_connection, "q", b"%d" % n, 30) for n in range(50)))
    assert answers == [b"%d" % n * 2 for n in range(50)]
    assert sum(counts) == 50
    assert min(counts) > 0


async def test_request_without_responders_fails_immediately(nats_connection: NatsConnection) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NoResponders, match="nobody answers on q"):
            await send_request(nats_connection, "q", b"", 60)


async def test_request_timeout_is_another_error(nats_connection: NatsConnection) -> None:
    never = asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        await never.wait()
        return b""

    async with serve_requests(nats_connection, "q", silent):
        with pytest.raises(NatsUnreachable, match=r"no answer on q within 0\.1 s") as raised:
            await send_request(nats_connection, "q", b"", 0.1)
        never.set()
    assert raised.value.sent


async def test_failing_responder_answers_the_next_request(nats_connection: NatsConnection) -> None:
    async def picky(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no")
        return data

    async with serve_requests(nats_connection, "q", picky):
        with pytest.raises(NatsUnreachable):
            await send_request(nats_connection, "q", b"bad", 0.2)
        assert await send_request(nats_connection, "q", b"good", 30) == b"good"


async def test_a_reply_reaches_the_one_that_waits_for_it(nats_connection: NatsConnection) -> None:
    async with ReplyInbox().subscribed(nats_connection) as replies:
        with replies.expect() as mine, replies.expect() as yours:
            await nats_connection.publish(yours.subject, b"for you")
            await nats_connection.publish(mine.subject, b"for me")
            assert await wait_for_reply(mine, 30) == b"for me"
            assert await wait_for_reply(yours, 30) == b"for you"
        with replies.expect() as nobody, pytest.raises(NatsUnreachable, match="no answer came"):
            await wait_for_reply(nobody, 0.05)
