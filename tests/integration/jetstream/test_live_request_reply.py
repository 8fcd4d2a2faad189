"""Request/reply: queue groups, missing responders, timeouts, failing handlers and the reply inbox."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import NatsUnreachable, NoResponders
from gpu_runtime.jetstream.request_reply import ReplyInbox, send_request, serve_requests, wait_for_reply


async def test_request_is_answered_by_one_member_of_the_queue_group(nats_connection: NatsConnection) -> None:
    counts = [0, 0]

    async def respond(member: int, data: bytes) -> bytes:
        counts[member] += 1
        return data * 2

    async with (
        serve_requests(nats_connection, "q", lambda data: respond(0, data), queue_group="g"),
        serve_requests(nats_connection, "q", lambda data: respond(1, data), queue_group="g"),
    ):
        replies = await asyncio.gather(*(send_request(nats_connection, "q", b"%d" % n, 30) for n in range(50)))
    assert replies == [b"%d" % n * 2 for n in range(50)]
    assert sum(counts) == 50
    assert min(counts) > 0


async def test_request_without_responders_fails_immediately(nats_connection: NatsConnection) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NoResponders, match="no subscriber on q"):
            await send_request(nats_connection, "q", b"", 60)


async def test_request_timeout_is_another_error(nats_connection: NatsConnection) -> None:
    never = asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        await never.wait()
        return b""

    async with serve_requests(nats_connection, "q", silent):
        with pytest.raises(NatsUnreachable, match=r"no reply on q within 0\.1 s") as raised:
            await send_request(nats_connection, "q", b"", 0.1)
        never.set()
    assert raised.value.sent


async def test_failing_responder_answers_the_next_request(nats_connection: NatsConnection) -> None:
    async def fail_on_bad(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no")
        return data

    async with serve_requests(nats_connection, "q", fail_on_bad):
        with pytest.raises(NatsUnreachable):
            await send_request(nats_connection, "q", b"bad", 0.2)
        assert await send_request(nats_connection, "q", b"good", 30) == b"good"


async def test_each_reply_reaches_its_own_waiter(nats_connection: NatsConnection) -> None:
    async with ReplyInbox().subscribed(nats_connection) as replies:
        with replies.expect() as first, replies.expect() as second:
            await nats_connection.publish(second.subject, b"for the second")
            await nats_connection.publish(first.subject, b"for the first")
            assert await wait_for_reply(first, 30) == b"for the first"
            assert await wait_for_reply(second, 30) == b"for the second"
        with replies.expect() as unanswered, pytest.raises(NatsUnreachable, match=r"no reply within 0\.05 s"):
            await wait_for_reply(unanswered, 0.05)
