"""The NATS connection of the runtime API, and the streams that it creates.

The process connects to NATS in the background. Only requests for invocations and dead letters need NATS: while NATS is
unreachable, the API answers them with 503.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import replace
from typing import NoReturn

from gpu_runtime.contract.messages.invocation_ticket import TicketKeyring
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.runtime_api.sync_replies import SyncReplies

logger = logging.getLogger(__name__)

MAX_REQUEST_TIMEOUT_SECONDS = 3.0
"""Maximum time of a request to NATS. It is short, because the HTTP caller is waiting. One attempt to publish may use
half of it."""
STREAM_SETUP_RETRY_SECONDS = 30.0
"""The delay before the API repeats a stream setup that NATS rejected. An operator may have fixed the cause by then."""


def cap_request_timeout(options: ConnectionOptions) -> ConnectionOptions:
    return replace(options, request_timeout=min(MAX_REQUEST_TIMEOUT_SECONDS, options.request_timeout))


class NatsClient:
    def __init__(self, connection: NatsConnection, topology: StreamTopology, tickets: TicketKeyring) -> None:
        self.connection, self.topology, self.tickets = connection, topology, tickets
        timeout = min(MAX_REQUEST_TIMEOUT_SECONDS, connection.options.request_timeout)
        self.publisher = Publisher(connection, timeout_seconds=timeout, attempt_timeout_seconds=timeout / 2)
        self.record_bucket = KeyValueBucket(connection, self.publisher, topology.record_bucket)
        self.replies = SyncReplies(topology.subjects, tickets)
        """Receives the results that workers send to synchronous callers."""
        self._setup_error: str | None = "NATS: the streams have not been created yet"
        self._reconnected = asyncio.Event()

    def problem(self) -> str | None:
        """Return why the API cannot accept invocations, or None if it can."""
        return self.connection.problem() or self._setup_error

    async def run(self) -> NoReturn:
        """Create the streams, and create them again if a NATS server has restarted without its data."""
        remove_listener = self.connection.add_listener(lambda is_up: self._reconnected.set() if is_up else None)
        try:
            while True:
                with suppress(JetStreamError):  # the connection was lost while subscribing: subscribe again
                    await self._maintain_streams()
        finally:
            remove_listener()

    async def _maintain_streams(self) -> NoReturn:
        async with self.connection.subscribed(self.replies.subject, self.replies.receive):
            while True:
                self._reconnected.clear()
                await self._ensure_streams()
                await is_set_within(self._reconnected, STREAM_SETUP_RETRY_SECONDS if self._setup_error else None)

    async def _ensure_streams(self) -> None:
        topology = self.topology
        try:
            await ensure_with_retry(
                self.connection, topology.streams, [topology.record_bucket], tuple(topology.shared_consumers())
            )
        except JetStreamError as error:
            self._setup_error = f"NATS: {error}"
            logger.error(  # noqa: TRY400 - no traceback needed
                "NATS rejected the stream setup; the process will retry, but an operator must resolve the error",
                extra={"error": str(error)},
            )
        else:
            self._setup_error = None
