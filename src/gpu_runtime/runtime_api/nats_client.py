"""NATS as this process uses it: one connection, made in the background, and the streams that it makes sure of.

Units and stock do not need it: while it is away, only invocations and dead letters are answered with 503.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.errors import StreamError
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.request_reply import Replies
from gpu_runtime.jetstream.stream_admin import ensure_until_done

logger = logging.getLogger(__name__)

PATIENCE = 3.0
"""A caller waits: a short second try, and then an honest 503."""
AGAIN_SECONDS = 30.0
"""After how long streams that cannot be made as they are wanted are tried again: the operator may have seen to it."""


def impatient(options: Options) -> Options:
    return replace(options, request_timeout=min(PATIENCE, options.request_timeout))


class Messaging:
    def __init__(self, connection: Connection, topology: Topology) -> None:
        self.connection, self.topology = connection, topology
        patience = min(PATIENCE, connection.options.request_timeout)
        self.publisher = Publisher(connection, patience=patience, attempt_seconds=patience / 2)
        self.state = Bucket(connection, self.publisher, topology.state)
        self.replies = Replies()
        self._unmade: str | None = "NATS: the streams are not made yet"
        self._back = asyncio.Event()

    def problem(self) -> str | None:
        """Why invocations cannot be taken; None where they can."""
        return self.connection.problem() or self._unmade

    async def run(self) -> NoReturn:
        """Keep the streams there, also after a server came back without its data."""
        unlisten = self.connection.listen(lambda there: self._back.set() if there else None)
        try:
            while True:
                with suppress(StreamError):  # the connection was lost in the moment of subscribing
                    await self._keep()
        finally:
            unlisten()

    async def _keep(self) -> NoReturn:
        async with self.replies.listening(self.connection):
            while True:
                self._back.clear()
                await self._ensure()
                await self._wait()

    async def _ensure(self) -> None:
        topology = self.topology
        try:
            await ensure_until_done(self.connection, topology.streams, [topology.state], tuple(topology.consumers()))
        except StreamError as error:
            self._unmade = f"NATS: {error}"
            logger.error("the streams cannot be made as they are wanted: %s", error)  # noqa: TRY400
        else:
            self._unmade = None

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(AGAIN_SECONDS if self._unmade else None):
                await self._back.wait()
        except TimeoutError:
            return
