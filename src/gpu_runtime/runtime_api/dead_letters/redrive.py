"""What is sent when a dead letter is sent again. Pure.

An invocation that was dead-lettered has its one result, which says so, and its ID stays with that. What runs again is a
new invocation of the same request, under an ID made of the old one and the letter's: however often the same letter is
sent again, it is the same new invocation. Its time begins anew, and nobody waits for its reply. It begins at the front
door, also where it died on its way to a worker.

A result that the store gave up on is another matter: it is the end of an invocation that has none yet, and goes to the
store again as it is.
"""

from msgspec import structs

from gpu_runtime.contract.errors import Conflict
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_id_errors
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.contract.validation.field_error import FieldError, FieldErrors
from gpu_runtime.jetstream.delivery import OutgoingMessage


def redriven_invocation(letter: DeadLetter) -> Invocation:
    """The new invocation. Conflict where the letter cannot be read: sent again, it would only die again."""
    try:
        first = (
            decode(letter.data, Dispatch).invocation
            if letter.source is Stream.DISPATCH
            else decode(letter.data, Invocation)
        )
    except MessageDecodeError as error:
        raise Conflict(f"dead letter {letter.id} cannot be sent again: {error}") from error
    for problem in _problems(first, letter):
        raise Conflict(f"dead letter {letter.id} cannot be sent again: {problem}")
    return structs.replace(
        first,
        invocation_id=redrive_invocation_id(first.invocation_id, letter.id),
        mode="async",
        reply_to="",
        enqueued_at=None,
    )


def _problems(first: Invocation, letter: DeadLetter) -> FieldErrors:
    """It may have died of what it says: of this become subjects and keys."""
    yield from invocation_id_errors(first.invocation_id)
    if first.serverless_request_id != letter.serverless_request_id:
        yield FieldError("serverlessRequestID", f"is {first.serverless_request_id!r}, but it came on {letter.subject}")


def redrive_invocation_id(invocation_id: str, letter_id: str) -> str:
    ending = f"-redrive-{letter_id}"
    return invocation_id[: MAX_INVOCATION_ID_LENGTH - len(ending)] + ending


def redriven_result(letter: DeadLetter) -> OutgoingMessage:
    return OutgoingMessage(
        letter.subject,
        letter.data,
        f"redrive-{letter.id}-{letter.published_at.timestamp():.3f}",
        _redrive_headers(letter),
    )


def _redrive_headers(letter: DeadLetter) -> dict[str, str]:
    """Without what was meant for the stream alone."""
    return {name: value for name, value in letter.headers.items() if not name.lower().startswith("nats-")}
