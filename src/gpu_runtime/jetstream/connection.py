"""A connection to NATS that is always there or on its way back.

It is made in the background, for ever: whoever needs it waits as long as it likes, and what was subscribed is
subscribed again. Nothing is sent late: what cannot be sent now is the caller's to send again.
"""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from nats.aio.msg import Msg
from nats.aio.subscription import Subscription as LiveSubscription
from nats.errors import Error as NatsError

from gpu_runtime.jetstream.client_session import Session, dialled
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.errors import NoResponders, StreamError, Unreachable
from gpu_runtime.jetstream.inbox import Inbox

logger = logging.getLogger(__name__)

Receive: TypeAlias = Callable[[Msg], None]
Listener: TypeAlias = Callable[[bool], None]
"""Told of every change: True when the connection is there (again), False when it is lost."""


@dataclass(eq=False)
class Subscription:
    """Interest in a subject, for as long as the connection lives, over however many sessions."""

    subject: str
    receive: Receive
    queue: str = ""
    live: LiveSubscription | None = field(default=None, repr=False)

    async def start(self, session: Session) -> None:
        async def received(message: Msg) -> None:
            self.receive(message)

        try:
            self.live = await session.client.subscribe(self.subject, queue=self.queue, cb=received)
        except (NatsError, OSError) as error:
            raise Unreachable(f"cannot subscribe to {self.subject}: {error}", sent=False) from error


class Connection:
    def __init__(self, options: Options) -> None:
        self.options = options
        self._session: Session | None = None
        self._there = asyncio.Event()
        self._problem: str | None = "not connected to NATS yet"
        self._subscriptions: set[Subscription] = set()
        self._listeners: list[Listener] = []
        self._answers = Inbox()
        self._ending = False

    def problem(self) -> str | None:
        """What is wrong with the connection, for readiness; None where it is there."""
        return self._problem

    @property
    def connected(self) -> bool:
        return self._there.is_set()

    async def wait(self, within: float | None = None) -> None:
        """Return when the connection is there; Unreachable if it is not within so many seconds."""
        await self._usable(within)

    def listen(self, listener: Listener) -> Callable[[], None]:
        """Be told of every loss and return. The answer ends it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    async def publish(
        self,
        subject: str,
        data: bytes = b"",
        *,
        reply: str = "",
        headers: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> None:
        """Send a message that nobody acknowledges, as soon as there is a connection."""
        session = self._session or await self._usable(within or self.options.request_timeout)
        await session.send(subject, data, reply, headers)

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        within: float | None = None,
    ) -> Msg:
        """Send a message and wait for its answer. NoResponders if nobody can give one."""
        within = within or self.options.request_timeout
        ends = asyncio.get_running_loop().time() + within
        session = self._session or await self._usable(within)
        with self._answers.expect() as expected:
            try:
                async with asyncio.timeout_at(ends):
                    await session.send(subject, data, expected.subject, headers)
                    answer = await expected.answer
            except TimeoutError:
                raise Unreachable(f"no answer on {subject} within {within:g} s", sent=True) from None
        return _answered(answer, subject)

    async def send_for_answer(
        self, subject: str, data: bytes, headers: Mapping[str, str]
    ) -> "tuple[asyncio.Future[Msg], Callable[[], None]]":
        """Send now, or Unreachable, and wait later: gives the coming answer, and what ends the wait for it."""
        session = self._session or await self._usable(0)
        expected = self._answers.open()
        try:
            await session.send(subject, data, expected.subject, headers)
        except BaseException:
            self._answers.close(expected)
            raise
        return expected.answer, lambda: self._answers.close(expected)

    async def subscribe(self, subject: str, receive: Receive, queue: str = "") -> Subscription:
        """Have every message on a subject handed over, now and after every loss of the connection."""
        subscription = Subscription(subject, receive, queue)
        self._subscriptions.add(subscription)
        if self._session is not None:
            try:
                await subscription.start(self._session)
            except BaseException:
                self._subscriptions.discard(subscription)
                raise
        return subscription

    async def unsubscribe(self, subscription: Subscription) -> None:
        """End it. What the server sent before it heard of it is still handed over."""
        self._subscriptions.discard(subscription)
        live, subscription.live = subscription.live, None
        if live is not None and self._session is not None:
            try:
                async with asyncio.timeout(self.options.request_timeout):
                    await live.drain()  # type: ignore[no-untyped-call]
            except (NatsError, OSError, TimeoutError) as error:
                logger.debug(
                    "unsubscribing was cut short", extra={"subject": subscription.subject, "error": str(error)}
                )

    async def _usable(self, within: float | None) -> Session:
        try:
            async with asyncio.timeout(within):
                while self._session is None:
                    await self._there.wait()
        except TimeoutError:
            raise Unreachable(self._problem or "not connected to NATS", sent=False) from None
        return self._session

    async def keep(self) -> None:
        """Have a session, until it is finished: being cancelled is not enough, which the library swallows at times."""
        while not self._ending:
            session = await self._dial()
            try:
                if not self._ending and await self._begin(session) and not self._ending:
                    await session.ended.wait()
            finally:
                self._lose(session)
                await session.cut()

    async def finish(self) -> None:
        self._ending = True
        if self._session is not None:
            await self._session.finish()

    async def _dial(self) -> Session:
        failures = 0
        while True:
            for url in random.sample(self.options.urls, len(self.options.urls)):
                try:
                    return await dialled(self.options, url)
                except StreamError as error:
                    self._note(str(error), again=failures > 0)
            failures += 1
            await asyncio.sleep(self.options.backoff.delay(failures))

    async def _begin(self, session: Session) -> bool:
        try:
            await Subscription(self._answers.subject, self._answers.receive).start(session)
            for subscription in tuple(self._subscriptions):
                await subscription.start(session)
        except Unreachable as error:
            self._note(str(error), again=True)
            return False
        if session.ended.is_set():
            return False
        self._session, self._problem = session, None
        self._there.set()
        logger.info("connected to NATS", extra={"server": session.url})
        self._tell(there=True)
        return True

    def _lose(self, session: Session) -> None:
        if self._session is None:
            return
        self._session = None
        self._there.clear()
        self._note(session.why or "the connection was ended", again=self._ending)
        self._answers.lose(session.why)
        self._tell(there=False)

    def _note(self, problem: str, *, again: bool) -> None:
        self._problem = f"not connected to NATS: {problem}"
        logger.log(logging.DEBUG if again else logging.WARNING, "not connected to NATS", extra={"error": problem})

    def _tell(self, *, there: bool) -> None:
        for listener in tuple(self._listeners):
            listener(there)


@asynccontextmanager
async def connection(options: Options) -> AsyncIterator[Connection]:
    """A connection for the length of the block, which begins at once: `wait` waits until it is there.

    Misconfigured where none can ever come. At the end, what was sent reaches the server first.
    """
    options.check()
    made = Connection(options)
    keeping = asyncio.create_task(made.keep(), name="nats-connection")
    try:
        yield made
    finally:
        await made.finish()
        while not keeping.done():  # the library swallows a cancellation that meets it while it dials
            keeping.cancel()
            await asyncio.wait({keeping}, timeout=0.5)


def _answered(answer: Msg, subject: str) -> Msg:
    if not answer.data and answer.headers and answer.headers.get("Status") == "503":
        raise NoResponders(f"nobody answers on {subject}")
    return answer
