"""A NATS connection that reconnects in the background until it is closed.

Callers wait for the connection with a timeout of their own. After a reconnect, the connection restores all
subscriptions. It does not buffer messages: if a message cannot be sent now, the call fails and the caller retries.
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

from gpu_runtime.jetstream.client_session import NatsSession
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.errors import JetStreamError, NatsUnreachable, NoResponders
from gpu_runtime.jetstream.inbox import Inbox

logger = logging.getLogger(__name__)

MessageCallback: TypeAlias = Callable[[Msg], None]
ConnectionListener: TypeAlias = Callable[[bool], None]
"""Called with True after each connect or reconnect, and with False when the connection is lost."""


@dataclass(eq=False)
class Subscription:
    """A subscription to a subject. The connection restores it in every new session until it is unsubscribed."""

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
        """Return why the process is not connected to NATS, for the readiness probe. Return None if it is connected."""
        return self._problem

    @property
    def connected(self) -> bool:
        return self._connected.is_set()

    async def wait_connected(self, timeout_seconds: float | None = None) -> None:
        """Wait for the connection. Raises NatsUnreachable after the timeout. None: no timeout."""
        await self._wait_for_session(timeout_seconds)

    def add_listener(self, listener: ConnectionListener) -> Callable[[], None]:
        """Call the listener on every connect and disconnect. Return a function that removes the listener."""
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
        """Publish a message on core NATS, without an acknowledgement.

        If the connection is lost, wait for a new connection until the timeout.
        """
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
        """Send a request and wait for its reply.

        Raises NoResponders if the subject has no subscriber, and NatsUnreachable if no reply arrives in time.
        """
        timeout_seconds = timeout_seconds or self.options.request_timeout
        deadline = asyncio.get_running_loop().time() + timeout_seconds
        session = self._session or await self._wait_for_session(timeout_seconds)
        with self._reply_inbox.expect() as expected:
            try:
                async with asyncio.timeout_at(deadline):
                    await session.send(subject, data, expected.subject, headers)
                    reply = await expected.reply
            except TimeoutError:
                raise NatsUnreachable(f"no reply on {subject} within {timeout_seconds:g} s", sent=True) from None
        if not reply.data and reply.headers and reply.headers.get("Status") == "503":
            raise NoResponders(f"no subscriber on {subject}")
        return reply

    async def subscribe(self, subject: str, callback: MessageCallback, queue_group: str = "") -> Subscription:
        """Call the callback with every message on a subject. The subscription is restored after a lost connection."""
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
        """End a subscription.

        The callback still gets the messages that the server sent before it processed the unsubscribe request.
        """
        self._subscriptions.discard(subscription)
        live, subscription.client_subscription = subscription.client_subscription, None
        if live is not None and self._session is not None:
            try:
                async with asyncio.timeout(self.options.request_timeout):
                    await live.drain()  # type: ignore[no-untyped-call]
            except (NatsError, OSError, TimeoutError) as error:
                fields = {"subject": subscription.subject, "error": str(error)}
                logger.debug("NATS unsubscribe failed", extra=fields)

    @asynccontextmanager
    async def subscribed(self, subject: str, callback: MessageCallback, queue_group: str = "") -> AsyncIterator[None]:
        """Subscribe during the block."""
        subscription = await self.subscribe(subject, callback, queue_group)
        try:
            yield
        finally:
            await self.unsubscribe(subscription)

    async def _wait_for_session(self, timeout_seconds: float | None) -> NatsSession:
        try:
            async with asyncio.timeout(timeout_seconds):
                while self._session is None:
                    await self._connected.wait()
        except TimeoutError:
            raise NatsUnreachable(self._problem or "not connected to NATS", sent=False) from None
        return self._session

    async def run(self) -> None:
        """Keep one session open until `shut_down` is called.

        A cancellation is not enough to end this method, because nats-py sometimes suppresses the cancellation.
        """
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
                session = NatsSession(self.options, url)
                try:
                    await session.open()
                except JetStreamError as error:
                    self._record_problem(str(error))
                    level = logging.DEBUG if failures else logging.WARNING
                    logger.log(
                        level, "NATS connection attempt failed; the process will retry", extra={"error": str(error)}
                    )
                else:
                    return session
            failures += 1
            await asyncio.sleep(self.options.backoff.delay(failures))

    async def _activate_session(self, session: NatsSession) -> bool:
        try:
            await Subscription(self._reply_inbox.subject, self._reply_inbox.receive).start(session)
            for subscription in tuple(self._subscriptions):
                await subscription.start(session)
        except NatsUnreachable as error:
            self._record_problem(str(error))
            fields = {"url": session.url, "error": str(error)}
            logger.debug("NATS subscriptions were not restored; the process will reconnect", extra=fields)
            return False
        if session.closed.is_set():
            return False
        self._session, self._problem = session, None
        self._connected.set()
        logger.info("NATS connection established", extra={"url": session.url})
        self._notify_listeners(connected=True)
        return True

    def _drop_session(self, session: NatsSession) -> None:
        if self._session is None:
            return
        self._session = None
        self._connected.clear()
        problem = session.last_error or "the connection was closed"
        self._record_problem(problem)
        if self._stopping:
            logger.debug("NATS connection closed", extra={"url": session.url})
        else:
            logger.warning(
                "NATS connection lost; the process will reconnect", extra={"url": session.url, "error": problem}
            )
        self._reply_inbox.fail_pending(session.last_error)
        self._notify_listeners(connected=False)

    def _record_problem(self, problem: str) -> None:
        self._problem = f"not connected to NATS: {problem}"

    def _notify_listeners(self, *, connected: bool) -> None:
        for listener in tuple(self._listeners):
            listener(connected)


@asynccontextmanager
async def connect_nats(options: ConnectionOptions) -> AsyncIterator[NatsConnection]:
    """Run a connection during the block. The block does not wait for the connection: `wait_connected` does.

    Raises NatsMisconfigured if the options can never lead to a connection. At the end of the block, pending messages
    are flushed to the server before the connection closes.
    """
    options.validate()
    connection = NatsConnection(options)
    run_task = asyncio.create_task(connection.run(), name="nats-connection")
    try:
        yield connection
    finally:
        await connection.shut_down()
        while not run_task.done():  # nats-py suppresses a cancellation that arrives while it connects
            run_task.cancel()
            await asyncio.wait({run_task}, timeout=0.5)
