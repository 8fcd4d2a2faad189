"""Questions are answered by one of a group; nobody there and no answer in time are two different things."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.errors import NoResponders, Unreachable
from gpu_runtime.jetstream.request_reply import Replies, answering, ask, reply


async def doubled(data: bytes) -> bytes:
    return data * 2


async def test_a_question_is_answered_by_one_of_the_group(connected: Connection) -> None:
    counts = [0, 0]

    async def answer(which: int, data: bytes) -> bytes:
        counts[which] += 1
        return data * 2

    async with (
        answering(connected, "q", lambda data: answer(0, data), group="g"),
        answering(connected, "q", lambda data: answer(1, data), group="g"),
    ):
        answers = await asyncio.gather(*(ask(connected, "q", b"%d" % n, 30) for n in range(50)))
    assert answers == [b"%d" % n * 2 for n in range(50)]
    assert sum(counts) == 50
    assert min(counts) > 0


async def test_nobody_there_is_known_at_once(connected: Connection) -> None:
    async with asyncio.timeout(30):
        with pytest.raises(NoResponders, match="nobody answers on q"):
            await ask(connected, "q", b"", 60)


async def test_no_answer_in_time_is_another_error(connected: Connection) -> None:
    never = asyncio.Event()

    async def silent(_data: bytes) -> bytes:
        await never.wait()
        return b""

    async with answering(connected, "q", silent):
        with pytest.raises(Unreachable, match=r"no answer on q within 0\.1 s") as raised:
            await ask(connected, "q", b"", 0.1)
        never.set()
    assert raised.value.sent


async def test_an_answer_that_fails_leaves_the_next_one_unharmed(connected: Connection) -> None:
    async def picky(data: bytes) -> bytes:
        if data == b"bad":
            raise ValueError("no")
        return data

    async with answering(connected, "q", picky):
        with pytest.raises(Unreachable):
            await ask(connected, "q", b"bad", 0.2)
        assert await ask(connected, "q", b"good", 30) == b"good"


async def test_a_reply_reaches_the_one_that_waits_for_it(connected: Connection) -> None:
    async with Replies().listening(connected) as replies:
        with replies.expect() as mine, replies.expect() as yours:
            await connected.publish(yours.subject, b"for you")
            await connected.publish(mine.subject, b"for me")
            assert await reply(mine, 30) == b"for me"
            assert await reply(yours, 30) == b"for you"
        with replies.expect() as nobody, pytest.raises(Unreachable, match="no answer came"):
            await reply(nobody, 0.05)
