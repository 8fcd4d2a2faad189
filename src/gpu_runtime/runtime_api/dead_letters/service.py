"""Lists, gets, redrives and deletes the dead letters in their JetStream stream.

The ID of a dead letter is its sequence in the stream, so a lookup needs one read. A redrive publishes the message
before it deletes the dead letter. If the process crashes in between, the dead letter stays. Another redrive then uses
the same IDs, so it creates no second invocation and no second result.

A list reads whole dead letters, as `invocations.listing` reads whole messages, and has the same limits.
"""

import asyncio
import logging
from dataclasses import dataclass

from msgspec import UNSET, UnsetType

from gpu_runtime.contract.crd.well_known import FUNCTION_ID_PATTERN
from gpu_runtime.contract.errors import Invalid, NotFound
from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.contract.messages.subjects import DEAD_LETTERS, WILDCARD, Stream
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.contract.validation.values import matches
from gpu_runtime.jetstream.stream_messages import StoredMessage, delete_message, next_message
from gpu_runtime.runtime_api.dead_letters.redrive import redriven_invocation, redriven_result
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.stored_letter import StoredDeadLetter, read_dead_letter
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView, dead_letter_view
from gpu_runtime.runtime_api.http.paging import decode_cursor, encode_cursor
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.listing import MAX_SCANNED_BYTES
from gpu_runtime.runtime_api.nats_client import NatsClient

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ListedDeadLetter:
    """What a list keeps of a dead letter."""

    sequence: int
    size: int
    view: DeadLetterView | None
    """The dead letter without its message. None if it cannot be decoded."""


@dataclass(frozen=True)
class DeadLetterService:
    nats_client: NatsClient
    enqueuer: InvocationEnqueuer
    functions: FunctionLookup
    reads: asyncio.Semaphore
    """Limits how many messages all lists of the replica read at the same time."""

    async def list(self, query: ListDeadLetters) -> tuple[list[DeadLetterView], str | None]:
        """Return one page, starting with the oldest dead letter, and the continue token of the next page."""
        source, function_id = WILDCARD if query.source is UNSET else query.source.value, self._function_id(query)
        if function_id is None:
            return [], None
        views: list[DeadLetterView] = []
        sequence, scanned_bytes = start_sequence(query.after), 0
        while (listed := await self._next_listed(source, function_id, sequence)) is not None:
            if len(views) == query.limit or scanned_bytes >= MAX_SCANNED_BYTES:
                return views, encode_cursor((DEAD_LETTERS, str(listed.sequence)))
            sequence, scanned_bytes = listed.sequence + 1, scanned_bytes + listed.size
            if listed.view is not None:
                views.append(listed.view)
        return views, None

    async def get(self, letter_id: str) -> DeadLetterView:
        return dead_letter_view(await self._find(letter_id), include_message=True)

    async def delete(self, letter_id: str) -> None:
        found = await self._find(letter_id)
        if not await self._remove(found):
            raise _not_found(letter_id)

    async def redrive(self, letter_id: str) -> RedriveView:
        found = await self._find(letter_id)
        invocation_id = await self._resend(found)
        await self._remove(found)
        return RedriveView(
            id=found.id,
            source=found.source,
            serverless_request_id=found.serverless_request_id,
            invocation_id=invocation_id,
        )

    async def _resend(self, found: StoredDeadLetter) -> str | None:
        """Publish the message of the dead letter again and return the invocationID of the published message."""
        if found.source is Stream.RESULT:
            message = redriven_result(found, self.nats_client.topology.subjects, self.nats_client.tickets.message_id)
            await self.nats_client.publisher.publish(message)
            return found.invocation_id
        invocation = redriven_invocation(found)
        await self.enqueuer.enqueue(invocation)
        return invocation.invocation_id

    async def _find(self, letter_id: str) -> StoredDeadLetter:
        if is_stream_sequence(letter_id):
            topology, connection = self.nats_client.topology, self.nats_client.connection
            stream, subject = topology.dead_letter_stream.name, topology.subjects.all_dead_letters
            message = await next_message(connection, stream, subject, int(letter_id))
            found = self._read(message) if message and str(message.sequence) == letter_id else None
            if found is not None:
                return found
        raise _not_found(letter_id)

    async def _remove(self, found: StoredDeadLetter) -> bool:
        return await delete_message(
            self.nats_client.connection, self.nats_client.topology.dead_letter_stream.name, found.sequence
        )

    def _function_id(self, query: ListDeadLetters) -> str | None:
        """Return the functionID to list, the wildcard for all functions, or None if no function matches the query."""
        named = self._named_function(query.serverless_request_id)
        if query.function_id is UNSET:
            return named
        if not matches(FUNCTION_ID_PATTERN, query.function_id):
            text = f"{query.function_id!r} is not a functionID; use lower-case letters, digits, '-' and '_'"
            raise Invalid([FieldError("functionID", text)])
        return query.function_id if named in (WILDCARD, query.function_id) else None

    def _named_function(self, request_id: str | UnsetType) -> str | None:
        if request_id is UNSET:
            return WILDCARD
        if errors := tuple(request_id_errors(request_id, "serverlessRequestID")):
            raise Invalid(errors)
        return self.functions.find_id(request_id)

    async def _next_listed(self, source: str, function_id: str, sequence: int) -> "ListedDeadLetter | None":
        topology = self.nats_client.topology
        subject = f"{topology.subjects.prefix}.{DEAD_LETTERS}.{source}.{function_id}"
        async with self.reads:
            stream = topology.dead_letter_stream.name
            message = await next_message(self.nats_client.connection, stream, subject, sequence)
            if message is None:
                return None
            found = self._read(message)
            view = dead_letter_view(found, include_message=False) if found else None
            return ListedDeadLetter(message.sequence, len(message.data), view)

    def _read(self, message: StoredMessage) -> StoredDeadLetter | None:
        try:
            return read_dead_letter(message, self.nats_client.topology.subjects, self.nats_client.tickets)
        except MessageDecodeError as error:
            fields = {"subject": message.subject, "sequence": message.sequence, "error": str(error)}
            logger.warning("dead letter decoding failed; the runtime API skips the dead letter", extra=fields)
            return None


def start_sequence(after: str | None) -> int:
    if not after:
        return 1
    source, sequence = decode_cursor(after)
    if source != DEAD_LETTERS or not is_stream_sequence(sequence):
        raise Invalid([FieldError("continue", "belongs to another list; omit it to start from the beginning")])
    return int(sequence)


def _not_found(letter_id: str) -> NotFound:
    return NotFound(f"dead letter {letter_id!r} does not exist; it may have been redriven, deleted or expired")
