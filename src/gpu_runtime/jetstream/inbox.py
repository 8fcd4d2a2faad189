"""Answers, each to the one who waits for it. One subscription for any number of them."""

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.msg import Msg

from gpu_runtime.jetstream.errors import NatsUnreachable


@dataclass(frozen=True)
class PendingReply:
    subject: str
    """Where the answer is to be sent."""
    reply: "asyncio.Future[Msg]"


class Inbox:
    def __init__(self) -> None:
        self._prefix = f"_INBOX.{secrets.token_hex(11)}"
        self._sequence = itertools.count()
        self._pending: dict[str, asyncio.Future[Msg]] = {}

    @property
    def subject(self) -> str:
        """What to subscribe to."""
        return f"{self._prefix}.*"

    def receive(self, message: Msg) -> None:
        """An answer that nobody waits for any more is dropped."""
        waiting = self._pending.pop(message.subject, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def open(self) -> PendingReply:
        subject = f"{self._prefix}.{next(self._sequence)}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._pending[subject] = answer
        return PendingReply(subject, answer)

    def close(self, expected: PendingReply) -> None:
        self._pending.pop(expected.subject, None)
        expected.reply.cancel()

    @contextmanager
    def expect(self) -> Iterator[PendingReply]:
        expected = self.open()
        try:
            yield expected
        finally:
            self.close(expected)

    def fail_pending(self, why: str) -> None:
        """The connection is gone, and with it every answer that was on its way."""
        waiting, self._pending = self._pending, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(NatsUnreachable(f"the connection was lost before the answer came: {why}", sent=True))
                each.exception()  # whoever still waits gets it all the same; whoever does not, left no complaint
