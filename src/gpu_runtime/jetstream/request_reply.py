"""Request/reply over core NATS: a client, a server and a reply inbox. Messages are not stored.

A client distinguishes a subject without a subscriber (NoResponders) from a reply that does not arrive in time
(NatsUnreachable).
"""

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
    """Send a request and return the reply.

    Raises NoResponders if the subject has no subscriber, and NatsUnreachable if no reply arrives in time.
    """
    reply = await connection.request(subject, data, timeout_seconds=timeout_seconds)
    return reply.data


@asynccontextmanager
async def serve_requests(
    connection: NatsConnection,
    subject: str,
    handler: RequestHandler,
    *,
    queue_group: str = "",
    max_concurrent: int = 64,
) -> AsyncIterator[None]:
    """Serve requests on a subject during the block. In a queue group, only one member serves each request.

    A request gets no reply if `max_concurrent` requests are in progress, or if the handler fails. The client's timeout
    then expires, and the client can send the request again. Requests in progress at the end of the block are completed.
    """
    running: set[asyncio.Task[None]] = set()

    def received(message: Msg) -> None:
        if len(running) >= max_concurrent:
            logger.warning(
                "NATS request dropped because too many requests are in progress",
                extra={"subject": message.subject, "limit": max_concurrent},
            )
            return
        task = asyncio.create_task(_respond(connection, message, handler), name=f"reply-{message.subject}")
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
    """Receives replies on subjects that this process passes on to other processes.

    A reply is not bound to one request. The subject stays valid after a lost connection. Only the replies that are sent
    while the connection is lost do not arrive. In contrast, `send_request` fails when the connection is lost.
    """

    def __init__(self) -> None:
        self._inbox = Inbox()

    @contextmanager
    def expect(self) -> Iterator[PendingReply]:
        """Expect one reply during the block.

        The sender publishes the reply to `PendingReply.subject`, and `wait_for_reply` waits for it.
        """
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
    """Wait for an expected reply. Raises NatsUnreachable after the timeout."""
    try:
        async with asyncio.timeout(timeout_seconds):
            return (await expected.reply).data
    except TimeoutError:
        raise NatsUnreachable(f"no reply within {timeout_seconds:g} s", sent=True) from None


async def _respond(connection: NatsConnection, message: Msg, handler: RequestHandler) -> None:
    try:
        data = await handler(message.data)
        if message.reply:
            await connection.publish(message.reply, data)
    except JetStreamError as error:
        fields = {"subject": message.subject, "error": str(error)}
        logger.warning("NATS reply was not sent; the request will time out", extra=fields)
    except Exception:
        logger.exception("NATS request handler raised an unexpected exception", extra={"subject": message.subject})
