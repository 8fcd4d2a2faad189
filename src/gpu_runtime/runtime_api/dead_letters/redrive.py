"""Builds the message that a redrive of a dead letter publishes. Pure functions.

A dead-lettered invocation already has a result with the state dead_lettered, and this result does not change. So a
redrive enqueues a new invocation with the same request. The new ID combines the old ID and the ID of the dead letter,
so that repeated redrives of one dead letter create one invocation. The new invocation has a new deadline, and no caller
waits for its reply. It always starts in the invoke stream, even if the dead letter comes from the dispatch stream.

A dead letter from the result stream contains the result of an invocation whose result was never stored. A redrive
publishes this result unchanged.
"""

from msgspec import structs

from gpu_runtime.contract.errors import NotRedrivable
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import decode_invocation, identity_errors
from gpu_runtime.contract.messages.limits import MAX_INVOCATION_ID_LENGTH
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.jetstream.delivery import OutgoingMessage


def redriven_invocation(letter: DeadLetter) -> Invocation:
    """Return the new invocation.

    Raises NotRedrivable if the message is malformed, because a consumer would dead-letter it again.
    """
    try:
        original = decode_invocation(letter.source, letter.data)
    except MessageDecodeError as error:
        raise NotRedrivable(f"dead letter {letter.id} cannot be redriven: {error}") from error
    # Such an error may be the reason why the message was dead-lettered.
    for field_error in identity_errors(original, letter.serverless_request_id):
        raise NotRedrivable(f"dead letter {letter.id} cannot be redriven: {field_error}")
    return structs.replace(
        original,
        invocation_id=redrive_invocation_id(original.invocation_id, letter.id),
        mode="async",
        reply_to="",
        enqueued_at=None,
    )


def redrive_invocation_id(invocation_id: str, letter_id: str) -> str:
    suffix = f"-redrive-{letter_id}"
    return invocation_id[: MAX_INVOCATION_ID_LENGTH - len(suffix)] + suffix


def redriven_result(letter: DeadLetter) -> OutgoingMessage:
    """Return the message without the headers that NATS has set."""
    message_id = f"redrive-{letter.id}-{letter.published_at.timestamp():.3f}"
    headers = {name: value for name, value in letter.headers.items() if not name.lower().startswith("nats-")}
    return OutgoingMessage(letter.subject, letter.data, message_id, headers)
