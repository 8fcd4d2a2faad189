"""Sends pull requests for a consumer. It never requests more messages than the process has free capacity for.

The capacity has a maximum number of messages and a maximum number of bytes. The size of a message that has not arrived
yet is unknown, so the puller counts each requested message with the maximum size of a message. When a message has
arrived, the puller counts its real size. So a process can handle many small messages concurrently, but only a few large
ones.

A pull request stays open on the server until it is filled or expires, so messages arrive without polling. Because open
requests never exceed the free capacity, the server delivers a message only to a process that can start it immediately.
The server sends heartbeats for open requests. If the heartbeats stop, the puller assumes that the server has lost the
requests, and sends them again.
"""

import asyncio
import logging
import secrets
from dataclasses import dataclass

import msgspec
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.event_wait import is_set_within
from gpu_runtime.jetstream.api import API_PREFIX
from gpu_runtime.jetstream.connection import MessageCallback, NatsConnection, Subscription
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

HEARTBEAT_STATUS, NO_RESPONDERS_STATUS = "100", "503"
PENDING_MESSAGES_HEADER = "Nats-Pending-Messages"


@dataclass(frozen=True)
class PullOptions:
    expires: float = 30
    """Seconds until an open pull request expires."""
    heartbeat: float = 5
    """Seconds between the heartbeats that the server sends while a pull request is open and no message arrives."""

    @property
    def heartbeat_timeout(self) -> float:
        """Seconds without a message or heartbeat after which the puller treats the pull requests as lost."""
        return 2.5 * self.heartbeat


@dataclass(frozen=True)
class PullLimits:
    """How many messages the process handles concurrently."""

    max_in_flight: int
    max_bytes_in_flight: int | None = None
    """Maximum size of all messages that are handled concurrently. None: no limit."""
    max_message_bytes: int = 1024 * 1024
    """Maximum size of one message. The default is the maximum of the NATS server."""

    def capacity(self, in_flight: int, bytes_in_flight: int) -> int:
        """Return how many messages can be in progress, with those that are in progress now."""
        if self.max_bytes_in_flight is None:
            return self.max_in_flight
        additional = max(0, self.max_bytes_in_flight - bytes_in_flight) // self.max_message_bytes
        # A single message always fits, so that a low limit cannot stop the consumer.
        return max(1, min(self.max_in_flight, in_flight + additional))


class Puller:
    def __init__(
        self,
        connection: NatsConnection,
        spec: ConsumerSpec,
        limits: PullLimits,
        callback: MessageCallback,
        options: PullOptions | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why messages cannot be pulled. None if pulling works, even if the stream is empty."""
        self._connection, self._spec, self._limits, self._callback = connection, spec, limits, callback
        self._options = options or PullOptions()
        self._inbox_subject = f"_INBOX.{secrets.token_hex(11)}"
        self._subscription: Subscription | None = None
        self._requested = 0
        self._in_flight = 0
        self._bytes_in_flight = 0
        self._last_received = 0.0
        self._pulls_valid = False
        self._paused = False
        self._wake = asyncio.Event()
        self._backoff = Backoff(initial_seconds=0.1, max_seconds=5.0)
        self._log_fields = {"stream": spec.stream, "consumer": spec.name}

    def adjust_in_flight(self, change: int, byte_change: int) -> None:
        """Change the number and the bytes of messages in progress. Lower numbers free capacity for pull requests."""
        self._in_flight += change
        self._bytes_in_flight += byte_change
        if change < 0:
            self._wake.set()

    def set_paused(self, paused: bool) -> None:
        """Pause or resume. Both drop the open pull requests.

        During a pause, the puller sends no pull requests.
        """
        self._paused, self._pulls_valid = paused, False
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Pull until `stopping` is set. After this method has returned, no more messages arrive."""
        remove_listener = self._connection.add_listener(self._on_connection_change)
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    await self._step()
                    failures = 0
                except JetStreamError as error:
                    failures += 1
                    self._record_problem(error)
                    await is_set_within(stopping, self._backoff.delay(failures))
        finally:
            remove_listener()
            await self._close()

    def wake(self) -> None:
        self._wake.set()

    async def _step(self) -> None:
        if self._connection.connected:
            if not self._pulls_valid:
                await self._resubscribe()
            capacity = self._limits.capacity(self._in_flight, self._bytes_in_flight)
            batch_size = pull_batch_size(capacity, self._in_flight, self._requested)
            if batch_size and not self._paused:
                await self._request_batch(batch_size)
        await self._wait_for_event()

    async def _resubscribe(self) -> None:
        """Ensure that the consumer exists, and start again without open pull requests.

        The puller changes its inbox subject, so it no longer receives the responses to earlier pull requests.
        """
        await self._close()
        await ensure_consumer(self._connection, self._spec)
        self._inbox_subject = f"_INBOX.{secrets.token_hex(11)}"
        self._requested, self._pulls_valid = 0, True
        self._subscription = await self._connection.subscribe(self._inbox_subject, self._on_message)
        if self.problem is not None:
            logger.info("message pull resumed", extra=self._log_fields)
        self.problem = None

    async def _request_batch(self, batch_size: int) -> None:
        pull = {
            "batch": batch_size,
            "expires": nanoseconds(self._options.expires),
            "idle_heartbeat": nanoseconds(self._options.heartbeat),
        }
        self._requested += batch_size
        self._last_received = asyncio.get_running_loop().time()
        subject = f"{API_PREFIX}.CONSUMER.MSG.NEXT.{self._spec.stream}.{self._spec.name}"
        await self._connection.publish(subject, msgspec.json.encode(pull), reply=self._inbox_subject)

    async def _wait_for_event(self) -> None:
        """Wait for the next event. Raises NatsUnreachable if heartbeats are missing while pull requests are open."""
        loop = asyncio.get_running_loop()
        expects_heartbeats = self._requested > 0 and self._connection.connected
        heartbeat_deadline = self._last_received + self._options.heartbeat_timeout if expects_heartbeats else None
        try:
            async with asyncio.timeout_at(heartbeat_deadline):
                await self._wake.wait()
        except TimeoutError:
            if loop.time() - self._last_received >= self._options.heartbeat_timeout:
                self._pulls_valid = False
                raise NatsUnreachable("the server sends no heartbeats for the pull requests", sent=True) from None
        self._wake.clear()

    def _on_message(self, message: Msg) -> None:
        self._last_received = asyncio.get_running_loop().time()
        # A message of the stream has an ack subject, a status message has none. The headers do not decide, because a
        # publisher can set any header.
        if message.reply:
            self._requested -= 1
            self._callback(message)
            if self._requested <= 0:
                self._wake.set()
            return
        headers = message.headers or {}
        if (status := headers.get("Status", "")) != HEARTBEAT_STATUS:
            self._on_pull_ended(status, headers)

    def _on_pull_ended(self, status: str, headers: dict[str, str]) -> None:
        """Handle the end of a pull request.

        If the status message does not contain the number of messages that were not delivered, renew all pull requests.
        """
        unfilled = headers.get(PENDING_MESSAGES_HEADER, "")
        if status != NO_RESPONDERS_STATUS and unfilled.isdecimal():
            self._requested = max(0, self._requested - int(unfilled))
        else:
            self._pulls_valid = False
            fields = self._log_fields | {"code": status, "reason": headers.get("Description", "")}
            logger.debug("NATS server ended the pull requests; the process will send new pull requests", extra=fields)
        self._wake.set()

    def _on_connection_change(self, _connected: bool) -> None:
        self._pulls_valid = False  # the server drops the pull requests of a lost connection
        self._wake.set()

    def _record_problem(self, error: JetStreamError) -> None:
        problem = f"cannot pull from {self._spec.name} of {self._spec.stream}: {error}"
        if problem != self.problem:
            logger.warning(
                "message pull failed; the process will retry", extra=self._log_fields | {"error": str(error)}
            )
        self.problem = problem

    async def _close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._connection.unsubscribe(subscription)


def pull_batch_size(capacity: int, in_flight: int, requested: int) -> int:
    """Return how many messages to request now.

    While pull requests are open, the result is 0 until half of the capacity is free and not requested. With one pull
    request per message, each message would cost twice as much.
    """
    free = capacity - in_flight - requested
    return free if free >= max(1, capacity // 2) or (requested <= 0 and free > 0) else 0
