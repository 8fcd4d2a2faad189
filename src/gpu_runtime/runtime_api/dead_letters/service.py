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
from gpu_runtime.contract.messages.limits import is_sequence
from gpu_runtime.contract.messages.message_codec import Unreadable, decode
from gpu_runtime.contract.messages.subjects import ANY, DEAD_LETTERS, Queue
from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.contract.validation.serverless import request_id_problems
from gpu_runtime.jetstream.stream_messages import Kept, kept, remove
from gpu_runtime.runtime_api.dead_letters.redrive import invocation_again, result_again
from gpu_runtime.runtime_api.dead_letters.requests import ListDeadLetters
from gpu_runtime.runtime_api.dead_letters.view import DeadLetterView, RedriveView, letter_view
from gpu_runtime.runtime_api.http.paging import cursor, read_cursor
from gpu_runtime.runtime_api.invocations.enqueue import Ingress
from gpu_runtime.runtime_api.nats_client import Messaging

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Found:
    letter: DeadLetter
    sequence: int
    """In the stream of dead letters."""


@dataclass(frozen=True)
class DeadLetterOffice:
    messaging: Messaging
    ingress: Ingress

    async def list(self, query: ListDeadLetters) -> tuple[list[DeadLetterView], str | None]:
        """A page, the oldest first, and where the next one begins."""
        source, request_id = _filters(query)
        views: list[DeadLetterView] = []
        async for found in self._letters(source, request_id, position_of(query.after)):
            if len(views) == query.limit:
                return views, cursor((DEAD_LETTERS, str(found.sequence)))
            views.append(letter_view(found.letter, whole=False))
        return views, None

    async def get(self, letter_id: str) -> DeadLetterView:
        return letter_view((await self._find(letter_id)).letter, whole=True)

    async def delete(self, letter_id: str) -> None:
        found = await self._find(letter_id)
        if not await self._remove(found):
            raise _unknown(letter_id)

    async def redrive(self, letter_id: str) -> RedriveView:
        found = await self._find(letter_id)
        invocation_id = await self._send_again(found.letter)
        await self._remove(found)
        return RedriveView(
            id=found.letter.id,
            source=found.letter.source,
            serverless_request_id=found.letter.serverless_request_id,
            invocation_id=invocation_id or None,
        )

    async def _send_again(self, letter: DeadLetter) -> str:
        """Gives the invocationID under which it goes on."""
        if letter.source is Queue.RESULT:
            await self.messaging.publisher.publish(result_again(letter))
            return letter.invocation_id
        invocation = invocation_again(letter)
        await self.ingress.take(invocation)
        return invocation.invocation_id

    async def _find(self, letter_id: str) -> Found:
        source, _, number = letter_id.rpartition("-")
        if source in {queue.value for queue in Queue} and number.isdecimal():
            async for found in self._letters(source, ANY):
                if found.letter.id == letter_id:
                    return found
        raise _unknown(letter_id)

    async def _remove(self, found: Found) -> bool:
        return await remove(self.messaging.connection, self.messaging.topology.dead_letters.name, found.sequence)

    async def _letters(self, source: str, request_id: str, sequence: int = 1) -> AsyncIterator[Found]:
        topology = self.messaging.topology
        subject = f"{topology.subjects.prefix}.{DEAD_LETTERS}.{source}.{request_id}"
        async for message in kept(self.messaging.connection, topology.dead_letters.name, subject, sequence):
            if (letter := _read(message)) is not None:
                yield Found(letter, message.sequence)


def _read(message: Kept) -> DeadLetter | None:
    try:
        return decode(message.data, DeadLetter)
    except Unreadable as error:
        logger.warning("a dead letter cannot be read", extra={"sequence": message.sequence, "error": str(error)})
        return None


def _filters(query: ListDeadLetters) -> tuple[str, str]:
    request_id = query.serverless_request_id
    if request_id is UNSET:
        request_id = ANY
    elif problems := tuple(request_id_problems(request_id, "serverlessRequestID")):
        raise Invalid(problems)
    return ANY if query.source is UNSET else query.source.value, request_id


def position_of(after: str | None) -> int:
    if not after:
        return 1
    place, position = read_cursor(after)
    if place != DEAD_LETTERS or not is_sequence(position):
        raise Invalid([Problem("continue", "is of another list; leave it out to begin anew")])
    return int(position)


def _unknown(letter_id: str) -> NotFound:
    return NotFound(f"there is no dead letter {letter_id!r}, or none any more: it may have been sent again or deleted")
