"""The invocations of a function, page by page: what waits and runs from the queues, what has ended from the store.

What moves from one place to the next while it is listed may be seen twice, and never gets lost: the places are walked
in the order in which an invocation passes through them.
"""

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import UNSET

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, decode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.result_query import ListResultsRequest
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_messages import StoredMessage, next_message
from gpu_runtime.runtime_api.http.paging import decode_cursor, encode_cursor
from gpu_runtime.runtime_api.invocations.record_store import InvocationRecordStore
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.view import InvocationView, message_view, record_view, result_view

RESULT_STORE_SOURCE = "stored"
LIST_SOURCES = (Stream.INVOKE.value, Stream.DISPATCH.value, RESULT_STORE_SOURCE)
"""In the order in which an invocation passes through them."""

MAX_SCANNED_MESSAGES = 1000
"""How many messages one page looks at. Where most do not fit the question, a page may hold fewer than it could."""
LIST_BATCH_SIZE = 50

ListPosition: TypeAlias = tuple[str, str]
"""Where to go on: one of the places, and there the number of a message, or what the store said."""


@dataclass(frozen=True)
class _Chunk:
    views: list[InvocationView]
    continue_at: ListPosition | None
    scanned: int = 0


@dataclass(frozen=True)
class InvocationListing:
    connection: NatsConnection
    topology: StreamTopology
    records: InvocationRecordStore
    results: ResultClient

    async def page(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        """A page, and where the next one begins."""
        if problems := tuple(request_id_errors(query.serverless_request_id, "serverlessRequestID")):
            raise Invalid(problems)
        found: dict[str, InvocationView] = {}
        at: ListPosition | None = start_position(query)
        looked_at = 0
        while at is not None and len(found) < query.limit and looked_at < MAX_SCANNED_MESSAGES:
            chunk = await self._list_chunk(query, at, query.limit - len(found))
            found |= {view.invocation_id: view for view in chunk.views}
            at, looked_at = chunk.continue_at, looked_at + chunk.scanned
        return list(found.values()), encode_cursor(at) if at else None

    async def _list_chunk(self, query: ListInvocations, at: ListPosition, room: int) -> _Chunk:
        place, position = at
        if place == RESULT_STORE_SOURCE:
            return await self._list_results(query, position, room)
        return await self._list_stream(query, Stream(place), int(position or "1"), min(room, LIST_BATCH_SIZE))

    async def _list_stream(self, query: ListInvocations, queue: Stream, sequence: int, room: int) -> _Chunk:
        stream, subject = (
            self.topology.stream_name(queue),
            self.topology.subjects.stream_subject(queue, query.serverless_request_id),
        )
        messages: list[StoredMessage] = []
        while len(messages) < room:
            message = await next_message(self.connection, stream, subject, sequence)
            if message is None:
                break
            messages.append(message)
            sequence = message.sequence + 1
        there_is_more = len(messages) == room
        seen = await asyncio.gather(*(self._view(queue, message) for message in messages))
        return _Chunk(
            [view for view in seen if view is not None and matches(view, query)],
            (queue.value, str(sequence)) if there_is_more else next_position(queue.value, query),
            len(messages),
        )

    async def _view(self, queue: Stream, message: StoredMessage) -> InvocationView | None:
        invocation = decode_invocation(queue, message.data)
        if invocation is None:
            return None
        found = await self.records.read(invocation.invocation_id)
        if found is None:
            state = InvocationState.QUEUED if queue is Stream.INVOKE else InvocationState.DISPATCHED
            return message_view(invocation, state)
        return record_view(invocation.invocation_id, found.record)

    async def _list_results(self, query: ListInvocations, after: str, room: int) -> _Chunk:
        question = ListResultsRequest(
            serverless_request_id=query.serverless_request_id,
            state=None if query.state is UNSET else ResultState(query.state.value),
            limit=room,
            continue_token=after,
        )
        listed = await self.results.list(question)
        return _Chunk(
            list(map(result_view, listed.results)),
            (RESULT_STORE_SOURCE, listed.continue_token) if listed.continue_token else None,
        )


def sources_for(query: ListInvocations) -> tuple[str, ...]:
    """Where those that are asked for can be."""
    if query.state is UNSET:
        return LIST_SOURCES
    return LIST_SOURCES[2:] if query.state.is_terminal else LIST_SOURCES[:2]


def start_position(query: ListInvocations) -> ListPosition:
    if not query.after:
        return sources_for(query)[0], ""
    place, position = decode_cursor(query.after)
    if place not in sources_for(query) or (place != RESULT_STORE_SOURCE and not is_stream_sequence(position)):
        raise Invalid([FieldError("continue", "is of another question; pass it on with the same parameters")])
    return place, position


def next_position(place: str, query: ListInvocations) -> ListPosition | None:
    following = [each for each in sources_for(query) if LIST_SOURCES.index(each) > LIST_SOURCES.index(place)]
    return (following[0], "") if following else None


def matches(view: InvocationView, query: ListInvocations) -> bool:
    """Whether it belongs into the live part: what has ended is listed from the store."""
    return not view.state.is_terminal and query.state in (UNSET, view.state)


def decode_invocation(queue: Stream, data: bytes) -> Invocation | None:
    """The invocation of a message; None where it cannot be read, which is its consumer's matter."""
    with suppress(MessageDecodeError):
        return decode(data, Invocation) if queue is Stream.INVOKE else decode(data, Dispatch).invocation
    return None
