"""Builds the message that a redrive of a dead letter publishes. Pure functions.

A dead-lettered invocation already has a result with the state dead_lettered, and this result does not change. So a
redrive enqueues a new invocation with the same request. The new ID combines the old ID and the ID of the dead letter,
so that repeated redrives of one dead letter create one invocation. The new invocation has a new deadline, and no caller
waits for its reply. It always starts in the invoke stream, even if the dead letter comes from the dispatch stream.

A dead letter from the result stream contains the result of an invocation whose result was never stored. A redrive
publishes this result unchanged.

A worker may have written the dead letter. So a redrive requires the ticket of the original message, and publishes only
on the subjects of the function of the ticket.
"""

from msgspec import structs

from gpu_runtime.contract.errors import NotRedrivable
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import decode_invocation, identity_errors, invocation_hash
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, InvocationTicket, MessageIDs, ticket_headers
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.runtime_api.dead_letters.stored_letter import StoredDeadLetter


def redriven_invocation(stored: StoredDeadLetter) -> Invocation:
    """Return the new invocation.

    Raises NotRedrivable if the message is malformed, because a consumer would dead-letter it again. Also raises
    NotRedrivable if the message is not the request that the platform accepted.
    """
    ticket = _ticket_of(stored)
    try:
        original = decode_invocation(stored.source, stored.letter.data)
    except MessageDecodeError as error:
        raise _not_redrivable(stored, str(error)) from error
    # Such an error may be the reason why the message was dead-lettered.
    for field_error in identity_errors(original, stored.function_id):
        raise _not_redrivable(stored, str(field_error))
    if (original.invocation_id, invocation_hash(original)) != (ticket.invocation_id, ticket.request_hash):
        raise _not_redrivable(stored, "the message is not the request that the API accepted")
    return structs.replace(
        original,
        invocation_id=redrive_invocation_id(original.invocation_id, stored.id),
        mode="async",
        reply_to="",
        enqueued_at=None,
    )


def redrive_invocation_id(invocation_id: str, letter_id: str) -> str:
    suffix = f"-redrive-{letter_id}"
    return invocation_id[: MAX_INVOCATION_ID_LENGTH - len(suffix)] + suffix


def redriven_result(stored: StoredDeadLetter, subjects: Subjects, message_ids: MessageIDs) -> OutgoingMessage:
    """Return the message with the ticket as its only header."""
    _ticket_of(stored)
    letter, subject = stored.letter, subjects.result(stored.function_id)
    message_id = message_ids("redrive", stored.id, letter.published_at.isoformat())
    return OutgoingMessage(subject, letter.data, message_id, ticket_headers(letter.headers[TICKET_HEADER]))


def _ticket_of(stored: StoredDeadLetter) -> InvocationTicket:
    if stored.ticket is None:
        raise _not_redrivable(stored, "it has no valid ticket of this function")
    return stored.ticket


def _not_redrivable(stored: StoredDeadLetter, reason: str) -> NotRedrivable:
    return NotRedrivable(f"dead letter {stored.id} cannot be redriven: {reason}")
