"""Reads a dead letter as the stream stores it. Pure functions.

The sender of a dead letter may be a worker. So only the subject of the message says from which stream and from which
function the dead letter comes, and only its sequence identifies it. The content counts only if it has a valid ticket.
"""

from dataclasses import dataclass

from gpu_runtime.contract.messages.dead_letter import UNKNOWN_ID, DeadLetter
from gpu_runtime.contract.messages.invocation_ticket import InvalidTicket, InvocationTicket, TicketKeyring
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.subjects import BadSubject, Stream, Subjects
from gpu_runtime.jetstream.stream_messages import StoredMessage


@dataclass(frozen=True)
class StoredDeadLetter:
    sequence: int
    """The sequence of the dead letter in the dead-letter stream. It is the ID of the dead letter."""
    source: Stream
    function_id: str
    letter: DeadLetter
    ticket: InvocationTicket | None
    """The ticket of the original message. None if it is not valid or belongs to another function."""

    @property
    def id(self) -> str:
        return str(self.sequence)

    @property
    def serverless_request_id(self) -> str:
        return self.ticket.serverless_request_id if self.ticket else UNKNOWN_ID

    @property
    def invocation_id(self) -> str | None:
        return self.ticket.invocation_id if self.ticket else None


def read_dead_letter(message: StoredMessage, subjects: Subjects, tickets: TicketKeyring) -> StoredDeadLetter:
    """Decode a message of the dead-letter stream. Raises MessageDecodeError."""
    letter = decode(message.data, DeadLetter)
    try:
        subject = subjects.parse(message.subject)
    except BadSubject as error:
        raise MessageDecodeError(error.message) from error
    if subject.source is None:
        raise MessageDecodeError(f"{message.subject!r} is not the subject of a dead letter")
    ticket = _own_ticket(letter, subject.function_id, tickets)
    return StoredDeadLetter(message.sequence, subject.source, subject.function_id, letter, ticket)


def _own_ticket(letter: DeadLetter, function_id: str, tickets: TicketKeyring) -> InvocationTicket | None:
    try:
        ticket = tickets.verify(letter.headers)
    except InvalidTicket:
        return None
    return ticket if ticket.function_id == function_id else None
