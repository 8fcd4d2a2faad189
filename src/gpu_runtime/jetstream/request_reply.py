"""Serves requests over core NATS. Messages are not stored. A client sends a request with `NatsConnection.request`."""

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

from nats.aio.msg import Msg

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.errors import JetStreamError

logger = logging.getLogger(__name__)

RequestHandler: TypeAlias = Callable[[bytes], Awaitable[bytes]]


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
                "NATS request dropped because too many requests are in progress; the request will time out",
                extra={"subject": message.subject, "limit": max_concurrent},
            )
            return
        task = asyncio.create_task(_respond(connection, message, handler), name=f"reply-{message.subject}")
        running.add(task)
        task.add_done_callback(running.discard)

    try:
        async with connection.subscribed(subject, received, queue_group):
            yield
    finally:
        if running:
            await asyncio.wait(running)


async def _respond(connection: NatsConnection, message: Msg, handler: RequestHandler) -> None:
    try:
        data = await handler(message.data)
        if message.reply:
            await connection.publish(message.reply, data)
    except JetStreamError as error:
        fields = {"subject": message.subject, "error": str(error)}
        logger.warning("NATS reply was not sent; the request will time out", extra=fields)
    except Exception:
        logger.exception(
            "NATS request handler raised an unexpected exception; the request will time out",
            extra={"subject": message.subject},
        )
