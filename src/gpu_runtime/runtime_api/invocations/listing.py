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
from gpu_runtime.contract.messages.limits import is_sequence
from gpu_runtime.contract.messages.message_codec import Unreadable, decode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.result_query import ListResults
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.contract.validation.field_error import Problem
from gpu_runtime.contract.validation.serverless import request_id_problems
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.stream_messages import Kept, first_kept
from gpu_runtime.runtime_api.http.paging import cursor, read_cursor
from gpu_runtime.runtime_api.invocations.record_store import Records
from gpu_runtime.runtime_api.invocations.requests import InvocationState, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import Results
from gpu_runtime.runtime_api.invocations.view import InvocationView, record_view, result_view, waiting_view

STORED = "stored"
PLACES = (Queue.INVOKE.value, Queue.DISPATCH.value, STORED)
"""In the order in which an invocation passes through them."""

LOOKED_AT = 1000
"""How many messages one page looks at. Where most do not fit the question, a page may hold fewer than it could."""
AT_ONCE = 50

Place: TypeAlias = tuple[str, str]
"""Where to go on: one of the places, and there the number of a message, or what the store said."""


@dataclass(frozen=True)
class _Chunk:
    views: list[InvocationView]
    following: Place | None
    looked_at: int = 0


@dataclass(frozen=True)
class Listing:
    connection: Connection
    topology: Topology
    records: Records
    results: Results

    async def page(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        """A page, and where the next one begins."""
        if problems := tuple(request_id_problems(query.serverless_request_id, "serverlessRequestID")):
            raise Invalid(problems)
        found: dict[str, InvocationView] = {}
        at: Place | None = beginning(query)
        looked_at = 0
        while at is not None and len(found) < query.limit and looked_at < LOOKED_AT:
            chunk = await self._chunk(query, at, query.limit - len(found))
            found |= {view.invocation_id: view for view in chunk.views}
            at, looked_at = chunk.following, looked_at + chunk.looked_at
        return list(found.values()), cursor(at) if at else None

    async def _chunk(self, query: ListInvocations, at: Place, room: int) -> _Chunk:
        place, position = at
        if place == STORED:
            return await self._stored(query, position, room)
        return await self._live(query, Queue(place), int(position or "1"), min(room, AT_ONCE))

    async def _live(self, query: ListInvocations, queue: Queue, sequence: int, room: int) -> _Chunk:
        stream, subject = (
            self.topology.stream_name(queue),
            self.topology.subjects.queue(queue, query.serverless_request_id),
        )
        messages: list[Kept] = []
        while len(messages) < room:
            message = await first_kept(self.connection, stream, subject, sequence)
            if message is None:
                break
            messages.append(message)
            sequence = message.sequence + 1
        there_is_more = len(messages) == room
        seen = await asyncio.gather(*(self._view(queue, message) for message in messages))
        return _Chunk(
            [view for view in seen if view is not None and fits(view, query)],
            (queue.value, str(sequence)) if there_is_more else next_place(queue.value, query),
            len(messages),
        )

    async def _view(self, queue: Queue, message: Kept) -> InvocationView | None:
        invocation = waiting(queue, message.data)
        if invocation is None:
            return None
        found = await self.records.read(invocation.invocation_id)
        if found is None:
            state = InvocationState.QUEUED if queue is Queue.INVOKE else InvocationState.DISPATCHED
            return waiting_view(invocation, state)
        return record_view(invocation.invocation_id, found.record)

    async def _stored(self, query: ListInvocations, after: str, room: int) -> _Chunk:
        question = ListResults(
            serverless_request_id=query.serverless_request_id,
            state=None if query.state is UNSET else ResultState(query.state.value),
            limit=room,
            after=after,
        )
        listed = await self.results.list(question)
        return _Chunk(list(map(result_view, listed.results)), (STORED, listed.after) if listed.after else None)


def places(query: ListInvocations) -> tuple[str, ...]:
    """Where those that are asked for can be."""
    if query.state is UNSET:
        return PLACES
    return PLACES[2:] if query.state.ended else PLACES[:2]


def beginning(query: ListInvocations) -> Place:
    if not query.after:
        return places(query)[0], ""
    place, position = read_cursor(query.after)
    if place not in places(query) or (place != STORED and not is_sequence(position)):
        raise Invalid([Problem("continue", "is of another question; pass it on with the same parameters")])
    return place, position


def next_place(place: str, query: ListInvocations) -> Place | None:
    following = [each for each in places(query) if PLACES.index(each) > PLACES.index(place)]
    return (following[0], "") if following else None


def fits(view: InvocationView, query: ListInvocations) -> bool:
    """Whether it belongs into the live part: what has ended is listed from the store."""
    return not view.state.ended and query.state in (UNSET, view.state)


def waiting(queue: Queue, data: bytes) -> Invocation | None:
    """The invocation of a message; None where it cannot be read, which is its consumer's matter."""
    with suppress(Unreadable):
        return decode(data, Invocation) if queue is Queue.INVOKE else decode(data, Dispatch).invocation
    return None
