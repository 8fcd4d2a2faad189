"""Lists the invocations of a function page by page.

Queued and running invocations come from the streams. Finished invocations come from the result store. The listing reads
the sources in the order in which an invocation passes through them. So an invocation that moves to the next source
during the listing may appear twice, but is never missing.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import UNSET

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.invocation_messages import decode_invocation
from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import MessageDecodeError
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.result_query import ListResultsRequest
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.contract.validation.field_error import FieldError
from gpu_runtime.contract.validation.serverless import request_id_errors
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.stream_messages import StoredMessage, next_message
from gpu_runtime.runtime_api.http.paging import decode_cursor, encode_cursor
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.view import InvocationView, message_view, record_view, result_view

RESULT_STORE_SOURCE = "stored"
"""The name of the result store in continue tokens. Do not change it, because callers may still send old tokens."""
LIST_SOURCES = (Stream.INVOKE.value, Stream.DISPATCH.value, RESULT_STORE_SOURCE)
"""The sources in the order in which an invocation passes through them."""

MAX_SCANNED_MESSAGES = 1000
"""Maximum number of messages that one page reads. If most of them do not match the filters, the page has fewer entries
than its limit."""
LIST_BATCH_SIZE = 50
"""Maximum number of messages whose records are read at the same time."""

ListPosition: TypeAlias = tuple[str, str]
"""Where the listing continues: the source, and a stream sequence or the continue token of the result store."""


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
        """Return one page and the continue token of the next page."""
        if errors := tuple(request_id_errors(query.serverless_request_id, "serverlessRequestID")):
            raise Invalid(errors)
        views: dict[str, InvocationView] = {}
        position: ListPosition | None = start_position(query)
        scanned = 0
        while position is not None and len(views) < query.limit and scanned < MAX_SCANNED_MESSAGES:
            chunk = await self._list_chunk(query, position, query.limit - len(views))
            views |= {view.invocation_id: view for view in chunk.views}
            position, scanned = chunk.continue_at, scanned + chunk.scanned
        return list(views.values()), encode_cursor(position) if position else None

    async def _list_chunk(self, query: ListInvocations, position: ListPosition, limit: int) -> _Chunk:
        source, token = position
        if source == RESULT_STORE_SOURCE:
            return await self._list_results(query, token, limit)
        return await self._list_stream(query, Stream(source), int(token or "1"), min(limit, LIST_BATCH_SIZE))

    async def _list_stream(self, query: ListInvocations, stream: Stream, sequence: int, limit: int) -> _Chunk:
        stream_name = self.topology.stream_name(stream)
        subject = self.topology.subjects.stream_subject(stream, query.serverless_request_id)
        messages: list[StoredMessage] = []
        while len(messages) < limit:
            message = await next_message(self.connection, stream_name, subject, sequence)
            if message is None:
                break
            messages.append(message)
            sequence = message.sequence + 1
        has_more = len(messages) == limit
        views = await asyncio.gather(*(self._view(stream, message) for message in messages))
        return _Chunk(
            [view for view in views if view is not None and matches(view, query)],
            (stream.value, str(sequence)) if has_more else next_position(stream.value, query),
            len(messages),
        )

    async def _view(self, stream: Stream, message: StoredMessage) -> InvocationView | None:
        try:
            invocation = decode_invocation(stream, message.data)
        except MessageDecodeError:  # the consumer dead-letters the message
            return None
        stored = await self.records.read(invocation.invocation_id)
        if stored is None:
            state = InvocationState.QUEUED if stream is Stream.INVOKE else InvocationState.DISPATCHED
            return message_view(invocation, state)
        return record_view(invocation.invocation_id, stored.record)

    async def _list_results(self, query: ListInvocations, token: str, limit: int) -> _Chunk:
        request = ListResultsRequest(
            serverless_request_id=query.serverless_request_id,
            state=None if query.state is UNSET else ResultState(query.state.value),
            limit=limit,
            continue_token=token,
        )
        response = await self.results.list(request)
        return _Chunk(
            list(map(result_view, response.results)),
            (RESULT_STORE_SOURCE, response.continue_token) if response.continue_token else None,
        )


def sources_for(query: ListInvocations) -> tuple[str, ...]:
    """Return the sources that can contain matching invocations."""
    if query.state is UNSET:
        return LIST_SOURCES
    return LIST_SOURCES[2:] if query.state.is_terminal else LIST_SOURCES[:2]


def start_position(query: ListInvocations) -> ListPosition:
    if not query.after:
        return sources_for(query)[0], ""
    source, token = decode_cursor(query.after)
    if source not in sources_for(query) or (source != RESULT_STORE_SOURCE and not is_stream_sequence(token)):
        raise Invalid([FieldError("continue", "belongs to another query; send it with unchanged parameters")])
    return source, token


def next_position(source: str, query: ListInvocations) -> ListPosition | None:
    later = [each for each in sources_for(query) if LIST_SOURCES.index(each) > LIST_SOURCES.index(source)]
    return (later[0], "") if later else None


def matches(view: InvocationView, query: ListInvocations) -> bool:
    """Whether an invocation from a stream matches the filters.

    A finished invocation does not match, because the result store lists it.
    """
    return not view.state.is_terminal and query.state in (UNSET, view.state)
