"""Questions and answers over plain NATS: nothing is kept, and silence is an error that says which kind it is."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import TypeAlias

from nats.aio.msg import Msg

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable
from gpu_runtime.jetstream.inbox import Inbox, PendingReply

logger = logging.getLogger(__name__)

RequestHandler: TypeAlias = Callable[[bytes], Awaitable[bytes]]


async def send_request(connection: NatsConnection, subject: str, data: bytes, timeout_seconds: float) -> bytes:
    """The answer. NoResponders if nobody is there to give one, Unreachable if it did not come in time."""
    answer = await connection.request(subject, data, timeout_seconds=timeout_seconds)
    return answer.data


@asynccontextmanager
async def serve_requests(
    connection: NatsConnection,
    subject: str,
    handler: RequestHandler,
    *,
    queue_group: str = "",
    max_concurrent: int = 64,
) -> AsyncIterator[None]:
    """Answer questions for the length of the block, at most so many at once; of a group, one member answers each.

    A question that comes while too many wait, or on which the answer fails, stays without an answer: the asker's time
    runs out, and it asks again. Those in hand at the end are answered.
    """
    running: set[asyncio.Task[None]] = set()

    def received(message: Msg) -> None:
        if len(running) >= max_concurrent:
            logger.warning("too many questions at once", extra={"subject": message.subject, "limit": max_concurrent})
            return
        task = asyncio.create_task(_respond(connection, message, handler), name=f"answer-{message.subject}")
        running.add(task)
        task.add_done_callback(running.discard)

    subscription = await connection.subscribe(subject, received, queue_group)
    try:
        yield
    finally:
        await connection.unsubscribe(subscription)
        if running:
            await asyncio.wait(running)


class ReplyInbox:
    """Answers that come when they come, from whoever was told where to send them.

    Unlike those to a request they survive a lost connection: the subject stays, only what is sent in between is lost.
    """

    def __init__(self) -> None:
        self._inbox = Inbox()

    @contextmanager
    def expect(self) -> Iterator[PendingReply]:
        """`subject` is where the answer is to be sent; wait for it with `reply`."""
        with self._inbox.expect() as expected:
            yield expected

    @asynccontextmanager
    async def subscribed(self, connection: NatsConnection) -> AsyncIterator["ReplyInbox"]:
        subscription = await connection.subscribe(self._inbox.subject, self._inbox.receive)
        try:
            yield self
        finally:
            await connection.unsubscribe(subscription)


async def wait_for_reply(expected: PendingReply, timeout_seconds: float) -> bytes:
    """The answer that was sent to where it was expected, or Unreachable."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return (await expected.reply).data
    except TimeoutError:
        raise NatsUnreachable(f"no answer came within {timeout_seconds:g} s", sent=True) from None


async def _respond(connection: NatsConnection, message: Msg, answer: RequestHandler) -> None:
    try:
        data = await answer(message.data)
        if message.reply:
            await connection.publish(message.reply, data)
    except JetStreamError as error:
        logger.warning("an answer was lost", extra={"subject": message.subject, "error": str(error)})
    except Exception:
        logger.exception("a question was not answered", extra={"subject": message.subject})
