"""Answers, each to the one who waits for it. One subscription for any number of them."""

import asyncio
import itertools
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.msg import Msg

from gpu_runtime.jetstream.errors import Unreachable


@dataclass(frozen=True)
class Expected:
    subject: str
    """Where the answer is to be sent."""
    answer: "asyncio.Future[Msg]"


class Inbox:
    def __init__(self) -> None:
        self._prefix = f"_INBOX.{secrets.token_hex(11)}"
        self._numbers = itertools.count()
        self._waiting: dict[str, asyncio.Future[Msg]] = {}

    @property
    def subject(self) -> str:
        """What to subscribe to."""
        return f"{self._prefix}.*"

    def receive(self, message: Msg) -> None:
        """An answer that nobody waits for any more is dropped."""
        waiting = self._waiting.pop(message.subject, None)
        if waiting is not None and not waiting.done():
            waiting.set_result(message)

    def open(self) -> Expected:
        subject = f"{self._prefix}.{next(self._numbers)}"
        answer: asyncio.Future[Msg] = asyncio.get_running_loop().create_future()
        self._waiting[subject] = answer
        return Expected(subject, answer)

    def close(self, expected: Expected) -> None:
        self._waiting.pop(expected.subject, None)
        expected.answer.cancel()

    @contextmanager
    def expect(self) -> Iterator[Expected]:
        expected = self.open()
        try:
            yield expected
        finally:
            self.close(expected)

    def lose(self, why: str) -> None:
        """The connection is gone, and with it every answer that was on its way."""
        waiting, self._waiting = self._waiting, {}
        for each in waiting.values():
            if not each.done():
                each.set_exception(Unreachable(f"the connection was lost before the answer came: {why}", sent=True))
                each.exception()  # whoever still waits gets it all the same; whoever does not, left no complaint
