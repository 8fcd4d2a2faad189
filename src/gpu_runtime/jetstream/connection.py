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

from gpu_runtime.jetstream.client_session import NatsSession, open_session
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable, NoResponders
from gpu_runtime.jetstream.inbox import Inbox

logger = logging.getLogger(__name__)

MessageCallback: TypeAlias = Callable[[Msg], None]
ConnectionListener: TypeAlias = Callable[[bool], None]
"""Told of every change: True when the connection is there (again), False when it is lost."""


@dataclass(eq=False)
class Subscription:
    """Interest in a subject, for as long as the connection lives, over however many sessions."""

    subject: str
    callback: MessageCallback
    queue_group: str = ""
    client_subscription: LiveSubscription | None = field(default=None, repr=False)

    async def start(self, session: NatsSession) -> None:
        async def received(message: Msg) -> None:
            self.callback(message)

        try:
            self.client_subscription = await session.client.subscribe(self.subject, queue=self.queue_group, cb=received)
        except (NatsError, OSError) as error:
            raise NatsUnreachable(f"cannot subscribe to {self.subject}: {error}", sent=False) from error


class NatsConnection:
    def __init__(self, options: ConnectionOptions) -> None:
        self.options = options
        self._session: NatsSession | None = None
        self._connected = asyncio.Event()
        self._problem: str | None = "not connected to NATS yet"
        self._subscriptions: set[Subscription] = set()
        self._listeners: list[ConnectionListener] = []
        self._reply_inbox = Inbox()
        self._stopping = False

    def problem(self) -> str | None:
        """What is wrong with the connection, for readiness; None where it is there."""
        return self._problem

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    async def wait_connected(self, timeout_seconds: float | None = None) -> None:
        """Return when the connection is there; Unreachable if it is not within so many seconds."""
        await self._wait_for_session(timeout_seconds)

    def add_listener(self, listener: ConnectionListener) -> Callable[[], None]:
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
        timeout_seconds: float | None = None,
    ) -> None:
        """Send a message that nobody acknowledges, as soon as there is a connection."""
        session = self._session or await self._wait_for_session(timeout_seconds or self.options.request_timeout)
        await session.send(subject, data, reply, headers)

    async def request(
        self,
        subject: str,
        data: bytes = b"",
        *,
        headers: Mapping[str, str] | None = None,
        timeout_seconds: float | None = None,
    ) -> Msg:
        """Send a message and wait for its answer. NoResponders if nobody can give one."""
        timeout_seconds = timeout_seconds or self.options.request_timeout
        ends = asyncio.get_running_loop().time() + timeout_seconds
        session = self._session or await self._wait_for_session(timeout_seconds)
        with self._reply_inbox.expect() as expected:
            try:
                async with asyncio.timeout_at(ends):
                    await session.send(subject, data, expected.subject, headers)
                    answer = await expected.reply
            except TimeoutError:
                raise NatsUnreachable(f"no answer on {subject} within {timeout_seconds:g} s", sent=True) from None
        return _check_responders(answer, subject)

    async def start_request(
        self, subject: str, data: bytes, headers: Mapping[str, str]
    ) -> "tuple[asyncio.Future[Msg], Callable[[], None]]":
        """Send now, or Unreachable, and wait later: gives the coming answer, and what ends the wait for it."""
        session = self._session or await self._wait_for_session(0)
        expected = self._reply_inbox.open()
        try:
            await session.send(subject, data, expected.subject, headers)
        except BaseException:
            self._reply_inbox.close(expected)
            raise
        return expected.reply, lambda: self._reply_inbox.close(expected)

    async def subscribe(self, subject: str, callback: MessageCallback, queue_group: str = "") -> Subscription:
        """Have every message on a subject handed over, now and after every loss of the connection."""
        subscription = Subscription(subject, callback, queue_group)
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
        live, subscription.client_subscription = subscription.client_subscription, None
        if live is not None and self._session is not None:
            try:
                async with asyncio.timeout(self.options.request_timeout):
                    await live.drain()  # type: ignore[no-untyped-call]
            except (NatsError, OSError, TimeoutError) as error:
                logger.debug(
                    "unsubscribing was cut short", extra={"subject": subscription.subject, "error": str(error)}
                )

    async def _wait_for_session(self, within: float | None) -> NatsSession:
        try:
            async with asyncio.timeout(within):
                while self._session is None:
                    await self._connected.wait()
        except TimeoutError:
            raise NatsUnreachable(self._problem or "not connected to NATS", sent=False) from None
        return self._session

    async def run(self) -> None:
        """Have a session, until it is finished: being cancelled is not enough, which the library swallows at times."""
        while not self._stopping:
            session = await self._dial()
            try:
                if not self._stopping and await self._activate_session(session) and not self._stopping:
                    await session.closed.wait()
            finally:
                self._drop_session(session)
                await session.abort()

    async def shut_down(self) -> None:
        self._stopping = True
        if self._session is not None:
            await self._session.flush_and_close()

    async def _dial(self) -> NatsSession:
        failures = 0
        while True:
            for url in random.sample(self.options.urls, len(self.options.urls)):
                try:
                    return await open_session(self.options, url)
                except JetStreamError as error:
                    self._record_problem(str(error), repeated=failures > 0)
            failures += 1
            await asyncio.sleep(self.options.backoff.delay(failures))

    async def _activate_session(self, session: NatsSession) -> bool:
        try:
            await Subscription(self._reply_inbox.subject, self._reply_inbox.receive).start(session)
            for subscription in tuple(self._subscriptions):
                await subscription.start(session)
        except NatsUnreachable as error:
            self._record_problem(str(error), repeated=True)
            return False
        if session.closed.is_set():
            return False
        self._session, self._problem = session, None
        self._connected.set()
        logger.info("connected to NATS", extra={"server": session.url})
        self._notify_listeners(connected=True)
        return True

    def _drop_session(self, session: NatsSession) -> None:
        if self._session is None:
            return
        self._session = None
        self._connected.clear()
        self._record_problem(session.last_error or "the connection was ended", repeated=self._stopping)
        self._reply_inbox.fail_pending(session.last_error)
        self._notify_listeners(connected=False)

    def _record_problem(self, problem: str, *, repeated: bool) -> None:
        self._problem = f"not connected to NATS: {problem}"
        logger.log(logging.DEBUG if repeated else logging.WARNING, "not connected to NATS", extra={"error": problem})

    def _notify_listeners(self, *, connected: bool) -> None:
        for listener in tuple(self._listeners):
            listener(connected)


@asynccontextmanager
async def connect_nats(options: ConnectionOptions) -> AsyncIterator[NatsConnection]:
    """A connection for the length of the block, which begins at once: `wait` waits until it is there.

    Misconfigured where none can ever come. At the end, what was sent reaches the server first.
    """
    options.validate()
    made = NatsConnection(options)
    keeping = asyncio.create_task(made.run(), name="nats-connection")
    try:
        yield made
    finally:
        await made.shut_down()
        while not keeping.done():  # the library swallows a cancellation that meets it while it dials
            keeping.cancel()
            await asyncio.wait({keeping}, timeout=0.5)


def _check_responders(answer: Msg, subject: str) -> Msg:
    if not answer.data and answer.headers and answer.headers.get("Status") == "503":
        raise NoResponders(f"nobody answers on {subject}")
    return answer
