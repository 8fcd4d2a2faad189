"""Dead letters, as they lie in their stream. A letter is found by its ID by walking along those of its queue.

Sending again comes before throwing away: killed in between, the letter is still there, and sending it once more sends
nothing new.
"""

import logging
from collections.abc import AsyncIterator
from dataclasses import dataclass

from msgspec import UNSET

from gpu_runtime.contract.errors import Invalid, NotFound
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.subjects import DEAD_LETTERS, WILDCARD, Stream
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.jetstream.stream_messages import StoredMessage, delete_message, iter_messages
from gpu_runtime.runtime_api.dead_letters.redrive import redriven_invocation, redriven_result
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView, dead_letter_view
from gpu_runtime.runtime_api.http.paging import decode_cursor, encode_cursor
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.nats_client import NatsClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class StoredDeadLetter:
    letter: DeadLetter
    sequence: int
    """In the stream of dead letters."""


@dataclass(frozen=True)
class DeadLetterService:
    nats_client: NatsClient
    enqueuer: InvocationEnqueuer

    async def list(self, query: ListDeadLetters) -> tuple[list[DeadLetterView], str | None]:
        """A page, the oldest first, and where the next one begins."""
        source, request_id = _filters(query)
        views: list[DeadLetterView] = []
        async for found in self._scan(source, request_id, start_sequence(query.after)):
            if len(views) == query.limit:
                return views, encode_cursor((DEAD_LETTERS, str(found.sequence)))
            views.append(dead_letter_view(found.letter, include_message=False))
        return views, None

    async def get(self, letter_id: str) -> DeadLetterView:
        return dead_letter_view((await self._find(letter_id)).letter, include_message=True)

    async def delete(self, letter_id: str) -> None:
        found = await self._find(letter_id)
        if not await self._remove(found):
            raise _not_found(letter_id)

    async def redrive(self, letter_id: str) -> RedriveView:
        found = await self._find(letter_id)
        invocation_id = await self._resend(found.letter)
        await self._remove(found)
        return RedriveView(
            id=found.letter.id,
            source=found.letter.source,
            serverless_request_id=found.letter.serverless_request_id,
            invocation_id=invocation_id or None,
        )

    async def _resend(self, letter: DeadLetter) -> str:
        """Gives the invocationID under which it goes on."""
        if letter.source is Stream.RESULT:
            await self.nats_client.publisher.publish(redriven_result(letter))
            return letter.invocation_id
        invocation = redriven_invocation(letter)
        await self.enqueuer.enqueue(invocation)
        return invocation.invocation_id

    async def _find(self, letter_id: str) -> StoredDeadLetter:
        source, _, number = letter_id.rpartition("-")
        if source in {queue.value for queue in Stream} and number.isdecimal():
            async for found in self._scan(source, WILDCARD):
                if found.letter.id == letter_id:
                    return found
        raise _not_found(letter_id)

    async def _remove(self, found: StoredDeadLetter) -> bool:
        return await delete_message(
            self.nats_client.connection, self.nats_client.topology.dead_letter_stream.name, found.sequence
        )

    async def _scan(self, source: str, request_id: str, sequence: int = 1) -> AsyncIterator[StoredDeadLetter]:
        topology = self.nats_client.topology
        subject = f"{topology.subjects.prefix}.{DEAD_LETTERS}.{source}.{request_id}"
        async for message in iter_messages(
            self.nats_client.connection, topology.dead_letter_stream.name, subject, sequence
        ):
            if (letter := _decode_dead_letter(message)) is not None:
                yield StoredDeadLetter(letter, message.sequence)


def _decode_dead_letter(message: StoredMessage) -> DeadLetter | None:
    try:
        return decode(message.data, DeadLetter)
    except MessageDecodeError as error:
        logger.warning("a dead letter cannot be read", extra={"sequence": message.sequence, "error": str(error)})
        return None


def _filters(query: ListDeadLetters) -> tuple[str, str]:
    request_id = query.serverless_request_id
    if request_id is UNSET:
        request_id = WILDCARD
    elif problems := tuple(request_id_errors(request_id, "serverlessRequestID")):
        raise Invalid(problems)
    return WILDCARD if query.source is UNSET else query.source.value, request_id


def start_sequence(after: str | None) -> int:
    if not after:
        return 1
    place, position = decode_cursor(after)
    if place != DEAD_LETTERS or not is_stream_sequence(position):
        raise Invalid([FieldError("continue", "is of another list; leave it out to begin anew")])
    return int(position)


def _not_found(letter_id: str) -> NotFound:
    return NotFound(f"there is no dead letter {letter_id!r}, or none any more: it may have been sent again or deleted")
