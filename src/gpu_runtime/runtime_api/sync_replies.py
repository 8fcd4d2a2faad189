"""Receives the results that workers and activators send to the callers of synchronous invocations.

Every invocation has a reply subject of its own, which contains 128 random bits. The ticket of the invocation contains
this subject. So a reply with a valid ticket is the result of the invocation that waits on the subject. All other
replies are ignored, and the caller continues to wait.
"""

import asyncio
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from nats.aio.msg import Msg

from gpu_runtime.contract.errors import Rejected
from gpu_runtime.contract.messages.invocation_messages import check_result
from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket, TicketKeyring
from gpu_runtime.contract.messages.message_codec import decode
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.messages.subjects import Subjects

REPLY_TOKEN_BYTES = 16


@dataclass(frozen=True)
class PendingResult:
    subject: str
    """The subject on which the result is expected."""
    result: "asyncio.Future[Result]"


class SyncReplies:
    """Passes each result to the request that waits for it, during a subscription to `subject`."""

    def __init__(self, subjects: Subjects, tickets: TicketKeyring) -> None:
        self._subjects, self._tickets = subjects, tickets
        self._replica = secrets.token_hex(REPLY_TOKEN_BYTES)
        self._pending: dict[str, asyncio.Future[Result]] = {}

    @property
    def subject(self) -> str:
        """The wildcard subject to subscribe to."""
        return self._subjects.replies(self._replica)

    def receive(self, message: Msg) -> None:
        pending = self._pending.get(message.subject)
        if pending is None or pending.done():
            return
        try:
            pending.set_result(read_reply(message, self._tickets))
        except Rejected:
            return  # not from the process that ends the invocation: continue to wait

    @contextmanager
    def expect(self, function_id: str) -> Iterator[PendingResult]:
        """Expect the result of one invocation during the block."""
        subject = self._subjects.reply(function_id, self._replica, secrets.token_hex(REPLY_TOKEN_BYTES))
        result: asyncio.Future[Result] = asyncio.get_running_loop().create_future()
        self._pending[subject] = result
        try:
            yield PendingResult(subject, result)
        finally:
            self._pending.pop(subject, None)
            result.cancel()


def read_reply(message: Msg, tickets: TicketKeyring) -> Result:
    """Return the result. Raises Rejected if the message is not the result of the invocation that has this subject."""
    ticket = tickets.verify(message.headers)
    if ticket.reply_to != message.subject:
        raise InvalidTicket("the ticket belongs to another reply subject")
    result = decode(message.data, Result)
    check_result(result, ticket)
    return result
