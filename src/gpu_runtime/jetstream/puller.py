"""Pulling from a consumer: as many messages as there is room for, at once when they come, and nothing while none come.

A pull stays open on the server until it is filled or its time is over. What is asked for never exceeds the room, so a
message goes to whoever can begin with it. Pulls that the server forgot are noticed by its silence and made again.
"""

import asyncio
import logging
import secrets
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import msgspec
from nats.aio.msg import Msg

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.api import API_PREFIX
from gpu_runtime.jetstream.connection import NatsConnection, Subscription
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

DeliveryCallback: TypeAlias = Callable[[Msg], None]

HEARTBEAT_STATUS, NO_RESPONDERS_STATUS = "100", "503"
PENDING_MESSAGES_HEADER = "Nats-Pending-Messages"


@dataclass(frozen=True)
class PullOptions:
    expires: float = 30
    """How long a pull stays open."""
    heartbeat: float = 5
    """How often the server says that it still knows of it."""

    @property
    def heartbeat_timeout(self) -> float:
        """After how long without a word the server has surely forgotten."""
        return 2.5 * self.heartbeat


class Puller:
    def __init__(
        self,
        connection: NatsConnection,
        spec: ConsumerSpec,
        max_in_flight: int,
        callback: DeliveryCallback,
        options: PullOptions | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why nothing comes, if that is for another reason than that there is nothing."""
        self._connection, self._spec, self._max_in_flight, self._callback = connection, spec, max_in_flight, callback
        self._options = options or PullOptions()
        self._inbox_subject = f"_INBOX.{secrets.token_hex(11)}"
        self._subscription: Subscription | None = None
        self._requested = 0
        self._in_flight = 0
        self._last_received = 0.0
        self._pulls_valid = False
        self._paused = False
        self._wake = asyncio.Event()
        self._backoff = Backoff(initial_seconds=0.1, max_seconds=5.0)

    def adjust_in_flight(self, change: int) -> None:
        """Room was taken, or became free again."""
        self._in_flight += change
        if change < 0:
            self._wake.set()

    def set_paused(self, paused: bool) -> None:
        """Ask for nothing more, and give up what was asked for; or begin again."""
        self._paused, self._pulls_valid = paused, False
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Pull until told to stop. Afterwards nothing more is received."""
        unlisten = self._connection.add_listener(self._on_connection_change)
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    await self._step()
                    failures = 0
                except JetStreamError as error:
                    failures += 1
                    self._record_problem(error)
                    await self._sleep(stopping, self._backoff.delay(failures))
        finally:
            unlisten()
            await self._close()

    def wake(self) -> None:
        self._wake.set()

    async def _step(self) -> None:
        if self._connection.connected:
            if not self._pulls_valid:
                await self._resubscribe()
            wanted = pull_batch_size(self._max_in_flight, self._in_flight, self._requested)
            if wanted and not self._paused:
                await self._request_batch(wanted)
        await self._wait_for_event()

    async def _resubscribe(self) -> None:
        """Start from nothing asked: the consumer is there, and what answers earlier pulls comes to nobody any more."""
        await self._close()
        await ensure_consumer(self._connection, self._spec)
        self._inbox_subject = f"_INBOX.{secrets.token_hex(11)}"
        self._requested, self._pulls_valid = 0, True
        self._subscription = await self._connection.subscribe(self._inbox_subject, self._on_message)
        if self.problem is not None:
            logger.info("pulling again", extra={"stream": self._spec.stream, "consumer": self._spec.name})
        self.problem = None

    async def _request_batch(self, wanted: int) -> None:
        pull = {
            "batch": wanted,
            "expires": nanoseconds(self._options.expires),
            "idle_heartbeat": nanoseconds(self._options.heartbeat),
        }
        self._requested += wanted
        self._last_received = asyncio.get_running_loop().time()
        subject = f"{API_PREFIX}.CONSUMER.MSG.NEXT.{self._spec.stream}.{self._spec.name}"
        await self._connection.publish(subject, msgspec.json.encode(pull), reply=self._inbox_subject)

    async def _wait_for_event(self) -> None:
        """Wait until there is something to do. A server that is silent for too long has forgotten our pulls."""
        loop = asyncio.get_running_loop()
        waiting = self._requested > 0 and self._connection.connected
        try:
            async with asyncio.timeout_at(self._last_received + self._options.heartbeat_timeout if waiting else None):
                await self._wake.wait()
        except TimeoutError:
            if loop.time() - self._last_received >= self._options.heartbeat_timeout:
                self._pulls_valid = False
                raise NatsUnreachable("the server said nothing of our pulls", sent=True) from None
        self._wake.clear()

    def _on_message(self, message: Msg) -> None:
        self._last_received = asyncio.get_running_loop().time()
        if message.reply:  # what can be acknowledged is of the stream, whatever its sender wrote into its headers
            self._requested -= 1
            self._callback(message)
            if self._requested <= 0:
                self._wake.set()
            return
        headers = message.headers or {}
        if (status := headers.get("Status", "")) != HEARTBEAT_STATUS:
            self._on_pull_ended(status, headers)

    def _on_pull_ended(self, status: str, headers: dict[str, str]) -> None:
        """A pull is over. Where the server does not say what it left unfilled, all are made anew."""
        unfilled = headers.get(PENDING_MESSAGES_HEADER, "")
        if status != NO_RESPONDERS_STATUS and unfilled.isdecimal():
            self._requested = max(0, self._requested - int(unfilled))
        else:
            self._pulls_valid = False
            logger.debug("pulls ended", extra={"status": status, "why": headers.get("Description", "")})
        self._wake.set()

    def _on_connection_change(self, _there: bool) -> None:
        self._pulls_valid = False  # the server forgets the pulls of a connection that is gone
        self._wake.set()

    def _record_problem(self, error: JetStreamError) -> None:
        problem = f"cannot pull from {self._spec.name} of {self._spec.stream}: {error}"
        if problem != self.problem:
            logger.warning("cannot pull", extra={"consumer": self._spec.name, "error": str(error)})
        self.problem = problem

    async def _sleep(self, stopping: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stopping.wait()
        except TimeoutError:
            return

    async def _close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._connection.unsubscribe(subscription)


def pull_batch_size(room: int, taken: int, asked: int) -> int:
    """How many to ask for now. While pulls are open, small amounts wait: a pull per message would double the cost."""
    missing = room - taken - asked
    return missing if missing >= max(1, room // 2) or (asked <= 0 and missing > 0) else 0
