"""Lists, gets, redrives and deletes the dead letters in their JetStream stream.

The stream has no index by dead letter ID: a lookup scans all dead letters of the same source stream. A redrive
publishes the message before it deletes the dead letter. If the process crashes in between, the dead letter stays.
Another redrive then uses the same IDs, so it creates no second invocation and no second result.
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
    """The sequence of the dead letter in the dead-letter stream."""


@dataclass(frozen=True)
class DeadLetterService:
    nats_client: NatsClient
    enqueuer: InvocationEnqueuer

    async def list(self, query: ListDeadLetters) -> tuple[list[DeadLetterView], str | None]:
        """Return one page, starting with the oldest dead letter, and the continue token of the next page."""
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
        """Publish the message of the dead letter again and return the invocationID of the published message."""
        if letter.source is Stream.RESULT:
            await self.nats_client.publisher.publish(redriven_result(letter))
            return letter.invocation_id
        invocation = redriven_invocation(letter)
        await self.enqueuer.enqueue(invocation)
        return invocation.invocation_id

    async def _find(self, letter_id: str) -> StoredDeadLetter:
        source, _, number = letter_id.rpartition("-")
        if source in {stream.value for stream in Stream} and number.isdecimal():
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
        fields = {"subject": message.subject, "sequence": message.sequence, "error": str(error)}
        logger.warning("dead letter decoding failed; the runtime API skips the dead letter", extra=fields)
        return None


def _filters(query: ListDeadLetters) -> tuple[str, str]:
    request_id = query.serverless_request_id
    if request_id is UNSET:
        request_id = WILDCARD
    elif errors := tuple(request_id_errors(request_id, "serverlessRequestID")):
        raise Invalid(errors)
    return WILDCARD if query.source is UNSET else query.source.value, request_id


def start_sequence(after: str | None) -> int:
    if not after:
        return 1
    source, sequence = decode_cursor(after)
    if source != DEAD_LETTERS or not is_stream_sequence(sequence):
        raise Invalid([FieldError("continue", "belongs to another list; omit it to start from the beginning")])
    return int(sequence)


def _not_found(letter_id: str) -> NotFound:
    return NotFound(f"dead letter {letter_id!r} does not exist; it may have been redriven, deleted or expired")
