"""Request/reply: queue groups, missing responders, timeouts, failing handlers and inboxes."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import NatsUnreachable, NoResponders
from gpu_runtime.jetstream.inbox import Inbox
from gpu_runtime.jetstream.request_reply import serve_requests


async def test_request_is_answered_by_one_member_of_the_queue_group(nats_connection: NatsConnection) -> None:
    counts = [0, 0]

    async def respond(member: int, data: bytes) -> bytes:
        counts[member] += 1
        return data * 2

    async with (
        serve_requests(nats_connection, "q", lambda data: respond(0, data), queue_group="g"),
        serve_requests(nats_connection, "q", lambda data: respond(1, data), queue_group="g"),
    ):
        requests = (nats_connection.request("q", b"%d" % n, timeout_seconds=30) for n in range(50))
        replies = await asyncio.gather(*requests)
    assert [reply.data for reply in replies] == [b"%d" % n * 2 for n in range(50)]
    assert sum(counts) == 50
    assert min(counts) > 0


async def test_request_without_responders_fails_immediately(nats_connection: NatsConnection) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NoResponders, match="no subscriber on q"):
            await nats_connection.request("q", timeout_seconds=60)


async def test_request_timeout_is_another_error(nats_connection: NatsConnection) -> None:
    never = asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        await never.wait()
        return b""

    async with serve_requests(nats_connection, "q", silent):
        with pytest.raises(NatsUnreachable, match=r"no reply on q within 0\.1 s") as raised:
            await nats_connection.request("q", timeout_seconds=0.1)
        never.set()
    assert raised.value.sent


async def test_failing_responder_answers_the_next_request(nats_connection: NatsConnection) -> None:
    async def fail_on_bad(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no")
        return data

    async with serve_requests(nats_connection, "q", fail_on_bad):
        with pytest.raises(NatsUnreachable):
            await nats_connection.request("q", b"bad", timeout_seconds=0.2)
        assert (await nats_connection.request("q", b"good", timeout_seconds=30)).data == b"good"


async def test_each_reply_reaches_its_own_waiter(nats_connection: NatsConnection) -> None:
    replies = Inbox()
    async with nats_connection.subscribed(replies.subject, replies.receive), asyncio.timeout(30):
        with replies.expect() as first, replies.expect() as second:
            await nats_connection.publish(second.subject, b"for the second")
            await nats_connection.publish(first.subject, b"for the first")
            assert (await first.reply).data == b"for the first"
            assert (await second.reply).data == b"for the second"
        with replies.expect() as unanswered, pytest.raises(TimeoutError):
            async with asyncio.timeout(0.05):
                await unanswered.reply
