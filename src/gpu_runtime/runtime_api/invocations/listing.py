"""Lists the invocations of a function page by page.

Queued and running invocations come from the streams. Finished invocations come from the result store. The listing reads
the sources in the order in which an invocation passes through them. So an invocation that moves to the next source
during the listing may appear twice, but is never missing.

A list needs no payloads. But a work queue stream allows no second consumer, so no consumer can deliver only the headers
of its messages: the listing has to read whole messages. It keeps only the fields that it needs, reads few messages at
the same time, and ends a page early if the messages are large.
"""

import asyncio
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import UNSET, structs

from gpu_runtime.contract.errors import Invalid
from gpu_runtime.contract.messages.invocation import Invocation
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
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
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
MAX_SCANNED_BYTES = 16 * 1024 * 1024
"""Maximum size of the messages that one page reads."""
MAX_CONCURRENT_MESSAGE_READS = 4
"""Maximum number of messages that all lists of a replica read at the same time. A message can have 1 MB."""
LIST_BATCH_SIZE = 50
"""Maximum number of messages whose records are read at the same time."""


@dataclass(frozen=True)
class ListedMessage:
    """What a list keeps of a message."""

    sequence: int
    size: int
    invocation: Invocation | None
    """The invocation without its body. None if the message cannot be decoded. Then its consumer dead-letters it."""


def listed_message(stream: Stream, message: StoredMessage) -> ListedMessage:
    try:
        invocation = structs.replace(decode_invocation(stream, message.data), body=b"")
    except MessageDecodeError:
        return ListedMessage(message.sequence, len(message.data), None)
    return ListedMessage(message.sequence, len(message.data), invocation)


ListPosition: TypeAlias = tuple[str, str]
"""Where the listing continues: the source, and a stream sequence or the continue token of the result store."""


@dataclass(frozen=True)
class _Chunk:
    views: list[InvocationView]
    continue_at: ListPosition | None
    scanned: int = 0
    scanned_bytes: int = 0


@dataclass(frozen=True)
class InvocationListing:
    connection: NatsConnection
    topology: StreamTopology
    functions: FunctionLookup
    records: InvocationRecordStore
    results: ResultClient
    reads: asyncio.Semaphore
    """All lists of the replica share it."""

    async def page(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        """Return one page and the continue token of the next page."""
        if errors := tuple(request_id_errors(query.serverless_request_id, "serverlessRequestID")):
            raise Invalid(errors)
        views: dict[str, InvocationView] = {}
        position: ListPosition | None = start_position(query)
        scanned = scanned_bytes = 0
        while (
            position is not None
            and len(views) < query.limit
            and scanned < MAX_SCANNED_MESSAGES
            and scanned_bytes < MAX_SCANNED_BYTES
        ):
            chunk = await self._list_chunk(query, position, query.limit - len(views))
            views |= {view.invocation_id: view for view in chunk.views}
            position, scanned = chunk.continue_at, scanned + chunk.scanned
            scanned_bytes += chunk.scanned_bytes
        return list(views.values()), encode_cursor(position) if position else None

    async def _list_chunk(self, query: ListInvocations, position: ListPosition, limit: int) -> _Chunk:
        source, token = position
        if source == RESULT_STORE_SOURCE:
            return await self._list_results(query, token, limit)
        return await self._list_stream(query, Stream(source), int(token or "1"), min(limit, LIST_BATCH_SIZE))

    async def _list_stream(self, query: ListInvocations, stream: Stream, sequence: int, limit: int) -> _Chunk:
        stream_name = self.topology.stream_name(stream)
        function_id = self.functions.find_id(query.serverless_request_id)
        if function_id is None:  # the activator ends the queued invocations of a deleted function
            return _Chunk([], next_position(stream.value, query))
        subject = self.topology.subjects.stream_subject(stream, function_id)
        found: list[ListedMessage] = []
        has_more = True
        while has_more and len(found) < limit and sum(each.size for each in found) < MAX_SCANNED_BYTES:
            message = await self._next_message(stream, stream_name, subject, sequence)
            has_more = message is not None
            if message is not None:
                found.append(message)
                sequence = message.sequence + 1
        invocations = [each.invocation for each in found if each.invocation is not None]
        views = await asyncio.gather(*(self._view(stream, invocation) for invocation in invocations))
        return _Chunk(
            [view for view in views if matches(view, query)],
            (stream.value, str(sequence)) if has_more else next_position(stream.value, query),
            len(found),
            sum(each.size for each in found),
        )

    async def _next_message(
        self, stream: Stream, stream_name: str, subject: str, sequence: int
    ) -> "ListedMessage | None":
        async with self.reads:
            message = await next_message(self.connection, stream_name, subject, sequence)
            return None if message is None else listed_message(stream, message)

    async def _view(self, stream: Stream, invocation: Invocation) -> InvocationView:
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
