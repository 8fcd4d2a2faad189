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
from gpu_runtime.jetstream.api import PREFIX
from gpu_runtime.jetstream.connection import Connection, Subscription
from gpu_runtime.jetstream.errors import StreamError, Unreachable
from gpu_runtime.jetstream.stream_admin import ensure_consumer
from gpu_runtime.jetstream.stream_config import nanoseconds
from gpu_runtime.jetstream.stream_specs import ConsumerSpec

logger = logging.getLogger(__name__)

Receive: TypeAlias = Callable[[Msg], None]

HEARTBEAT, NO_RESPONDERS = "100", "503"
UNFILLED = "Nats-Pending-Messages"


@dataclass(frozen=True)
class Patience:
    expires: float = 30
    """How long a pull stays open."""
    heartbeat: float = 5
    """How often the server says that it still knows of it."""

    @property
    def silence(self) -> float:
        """After how long without a word the server has surely forgotten."""
        return 2.5 * self.heartbeat


class Puller:
    def __init__(
        self,
        connection: Connection,
        spec: ConsumerSpec,
        room: int,
        receive: Receive,
        patience: Patience | None = None,
    ) -> None:
        self.problem: str | None = None
        """Why nothing comes, if that is for another reason than that there is nothing."""
        self._connection, self._spec, self._room, self._receive = connection, spec, room, receive
        self._patience = patience or Patience()
        self._base = f"_INBOX.{secrets.token_hex(11)}"
        self._subscription: Subscription | None = None
        self._asked = 0
        self._taken = 0
        self._heard = 0.0
        self._intact = False
        self._resting = False
        self._wake = asyncio.Event()
        self._backoff = Backoff(first=0.1, longest=5.0)

    def taken(self, change: int) -> None:
        """Room was taken, or became free again."""
        self._taken += change
        if change < 0:
            self._wake.set()

    def rest(self, resting: bool) -> None:
        """Ask for nothing more, and give up what was asked for; or begin again."""
        self._resting, self._intact = resting, False
        self._wake.set()

    async def run(self, stopping: asyncio.Event) -> None:
        """Pull until told to stop. Afterwards nothing more is received."""
        unlisten = self._connection.listen(self._connection_changed)
        failures = 0
        try:
            while not stopping.is_set():
                try:
                    await self._turn()
                    failures = 0
                except StreamError as error:
                    failures += 1
                    self._complain(error)
                    await self._pause(stopping, self._backoff.delay(failures))
        finally:
            unlisten()
            await self._close()

    def wake(self) -> None:
        self._wake.set()

    async def _turn(self) -> None:
        if self._connection.connected:
            if not self._intact:
                await self._begin()
            wanted = shortfall(self._room, self._taken, self._asked)
            if wanted and not self._resting:
                await self._pull(wanted)
        await self._word()

    async def _begin(self) -> None:
        """Start from nothing asked: the consumer is there, and what answers earlier pulls comes to nobody any more."""
        await self._close()
        await ensure_consumer(self._connection, self._spec)
        self._base = f"_INBOX.{secrets.token_hex(11)}"
        self._asked, self._intact = 0, True
        self._subscription = await self._connection.subscribe(self._base, self._received)
        if self.problem is not None:
            logger.info("pulling again", extra={"stream": self._spec.stream, "consumer": self._spec.name})
        self.problem = None

    async def _pull(self, wanted: int) -> None:
        pull = {
            "batch": wanted,
            "expires": nanoseconds(self._patience.expires),
            "idle_heartbeat": nanoseconds(self._patience.heartbeat),
        }
        self._asked += wanted
        self._heard = asyncio.get_running_loop().time()
        subject = f"{PREFIX}.CONSUMER.MSG.NEXT.{self._spec.stream}.{self._spec.name}"
        await self._connection.publish(subject, msgspec.json.encode(pull), reply=self._base)

    async def _word(self) -> None:
        """Wait until there is something to do. A server that is silent for too long has forgotten our pulls."""
        loop = asyncio.get_running_loop()
        waiting = self._asked > 0 and self._connection.connected
        try:
            async with asyncio.timeout_at(self._heard + self._patience.silence if waiting else None):
                await self._wake.wait()
        except TimeoutError:
            if loop.time() - self._heard >= self._patience.silence:
                self._intact = False
                raise Unreachable("the server said nothing of our pulls", sent=True) from None
        self._wake.clear()

    def _received(self, message: Msg) -> None:
        self._heard = asyncio.get_running_loop().time()
        if message.reply:  # what can be acknowledged is of the stream, whatever its sender wrote into its headers
            self._asked -= 1
            self._receive(message)
            if self._asked <= 0:
                self._wake.set()
            return
        headers = message.headers or {}
        if (status := headers.get("Status", "")) != HEARTBEAT:
            self._ended(status, headers)

    def _ended(self, status: str, headers: dict[str, str]) -> None:
        """A pull is over. Where the server does not say what it left unfilled, all are made anew."""
        unfilled = headers.get(UNFILLED, "")
        if status != NO_RESPONDERS and unfilled.isdecimal():
            self._asked = max(0, self._asked - int(unfilled))
        else:
            self._intact = False
            logger.debug("pulls ended", extra={"status": status, "why": headers.get("Description", "")})
        self._wake.set()

    def _connection_changed(self, _there: bool) -> None:
        self._intact = False  # the server forgets the pulls of a connection that is gone
        self._wake.set()

    def _complain(self, error: StreamError) -> None:
        problem = f"cannot pull from {self._spec.name} of {self._spec.stream}: {error}"
        if problem != self.problem:
            logger.warning("cannot pull", extra={"consumer": self._spec.name, "error": str(error)})
        self.problem = problem

    async def _pause(self, stopping: asyncio.Event, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await stopping.wait()
        except TimeoutError:
            return

    async def _close(self) -> None:
        subscription, self._subscription = self._subscription, None
        if subscription is not None:
            await self._connection.unsubscribe(subscription)


def shortfall(room: int, taken: int, asked: int) -> int:
    """How many to ask for now. While pulls are open, small amounts wait: a pull per message would double the cost."""
    missing = room - taken - asked
    return missing if missing >= max(1, room // 2) or (asked <= 0 and missing > 0) else 0
