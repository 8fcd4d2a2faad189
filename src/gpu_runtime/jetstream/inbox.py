"""An inbox that passes each reply to the future that waits for it. One subscription serves any number of requests."""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.msg import Msg

from gpu_runtime.jetstream.errors import NatsUnreachable

TOKEN_BYTES = 16
"""Random bytes in the last part of a subject."""


@dataclass(frozen=True)
class PendingReply:
    subject: str
    """The subject on which the reply is expected."""
    reply: "asyncio.Future[Msg]"


class Inbox:
    """Receives replies during a subscription to `subject`.

    A process can pass the subject of a pending reply on to another process, which sends the reply later. The subject
    stays valid after a lost connection. Only the replies that are sent while the connection is lost do not arrive.
    """

    def __init__(self) -> None:
        self._prefix = f"_INBOX.{secrets.token_hex(11)}"
        self._pending: dict[str, asyncio.Future[Msg]] = {}

    @property
    def subject(self) -> str:
        """The wildcard subject to subscribe to."""
        return f"{self._prefix}.*"

    def receive(self, message: Msg) -> None:
        """Complete the pending reply for this subject.

        Drop the message if no request waits for it, for example after the timeout of the request.
        """
        pending = self._pending.pop(message.subject, None)
        if pending is not None and not pending.done():
            pending.set_result(message)

    @contextmanager
    def expect(self) -> Iterator[PendingReply]:
        """Expect one reply during the block."""
        # Random, so that a process that gets one of the subjects cannot guess the next one and reply to it.
        subject = f"{self._prefix}.{secrets.token_hex(TOKEN_BYTES)}"
        reply: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._pending[subject] = reply
        try:
            yield PendingReply(subject, reply)
        finally:
            self._pending.pop(subject, None)
            reply.cancel()

    def fail_pending(self, reason: str) -> None:
        """Fail all pending replies with NatsUnreachable: the connection is lost, so their replies cannot arrive."""
        pending, self._pending = self._pending, {}
        for each in pending.values():
            if not each.done():
                each.set_exception(NatsUnreachable(f"the connection was lost before the reply: {reason}", sent=True))
                each.exception()  # mark the exception as retrieved, so that asyncio logs no warning
