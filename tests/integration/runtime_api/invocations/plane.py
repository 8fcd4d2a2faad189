"""Whoever is on the other side of the queues: plays activator, worker and result store over the real NATS."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import structs

from gpu_runtime.contract.messages.dead_letter import DeadLetters
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import REVISION, InvocationRecord, Stage, advanced, ended
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import (
    RESULT,
    RESULTS,
    FindResult,
    FoundResult,
    ListedResults,
    ListResults,
)
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Delivery, Done, Outcome, Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption
from gpu_runtime.jetstream.request_reply import answering


@dataclass
class OtherSide:
    connection: Connection
    topology: Topology = field(default_factory=Topology)
    answer: Callable[[Invocation], tuple[str, bytes]] = lambda called: (called.content_type, called.body)
    """What the function answers: its content type and its bytes."""
    called: list[Invocation] = field(default_factory=list)
    stored: dict[str, Result] = field(default_factory=dict)
    cancels: list[str] = field(default_factory=list)
    replies: bool = True

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.connection)
        self.state = Bucket(self.connection, self.publisher, self.topology.state)

    async def record(self, invocation_id: str) -> InvocationRecord:
        entry = await self.state.get(invocation_id)
        assert entry is not None, f"there is no record of {invocation_id}"
        return decode(entry.value, InvocationRecord)

    async def write(self, invocation_id: str, record: InvocationRecord) -> None:
        entry = await self.state.get(invocation_id)
        assert entry is not None
        assert await self.state.update(invocation_id, encode(record), entry.revision)

    async def forget(self, invocation_id: str) -> None:
        entry = await self.state.get(invocation_id)
        assert entry is not None
        assert await self.state.purge(invocation_id, entry.revision)

    async def reach(self, invocation_id: str, stage: Stage, worker: str = "") -> None:
        await self.write(invocation_id, advanced(await self.record(invocation_id), stage, now(), worker))

    async def dispatch(self, invocation: Invocation) -> None:
        """Leave it where workers find it."""
        message = Dispatch(invocation=invocation, deadline=invocation.deadline or now(), dispatched_at=now())
        subject = self.topology.subjects.dispatch(invocation.serverless_request_id)
        await self.publisher.publish(Outgoing(subject, encode(message), message.message_id))

    async def bury(self, source: Queue, data: bytes, sequence: int, request_id: str = "f", name: str = "") -> str:
        """Make a dead letter, and give its ID."""
        subject = self.topology.subjects.queue(source, request_id)
        letters = DeadLetters(self.topology.subjects, source)
        delivery = Delivery(subject, data, {REVISION: "7", "Nats-Msg-Id": "x"}, "S", sequence, 5, now())
        failure = Failure(failure_class=FailureClass.FUNCTION_CRASHED, message="it broke off five times")
        letter = letters.letter(delivery, failure, now(), name)
        await self.publisher.publish(letters.outgoing(letter))
        return letter.id

    async def end(self, result: Result) -> None:
        """What the result store does: the first result stands."""
        stored = self.stored.setdefault(result.invocation_id, result)
        entry = await self.state.get(result.invocation_id)
        if entry is not None:
            record = ended(decode(entry.value, InvocationRecord), stored.state, now())
            await self.state.update(result.invocation_id, encode(record), entry.revision)

    async def _call(self, delivery: Delivery) -> Outcome:
        invocation = decode(delivery.data, Invocation)
        assert delivery.headers[REVISION]
        self.called.append(invocation)
        result = succeeded(invocation, *self.answer(invocation))
        subject = self.topology.subjects.result(invocation.serverless_request_id)
        await self.publisher.publish(Outgoing(subject, encode(result), result.message_id))
        if invocation.reply_to and self.replies:
            await self.connection.publish(invocation.reply_to, encode(result))
        return Done()

    async def _store(self, delivery: Delivery) -> Outcome:
        await self.end(decode(delivery.data, Result))
        return Done()

    async def _find(self, data: bytes) -> bytes:
        return encode(FoundResult(result=self.stored.get(decode(data, FindResult).invocation_id)))

    async def _list(self, data: bytes) -> bytes:
        asked = decode(data, ListResults)
        if asked.after and not asked.after.isdecimal():
            return encode(ListedResults(problem="cannot be read"))
        ours = [each for each in self.stored.values() if each.serverless_request_id == asked.serverless_request_id]
        known = [each for each in reversed(ours) if asked.state in (None, each.state)]
        start = int(asked.after or 0)
        page = [structs.replace(each, body=b"") for each in known[start : start + asked.limit]]
        after = str(start + len(page)) if len(known) > start + len(page) else ""
        return encode(ListedResults(results=tuple(page), after=after))

    @asynccontextmanager
    async def working(self) -> AsyncIterator[None]:
        """Take what is queued, run it and reply."""
        async with self._consuming(Consumption(self.publisher, self.topology.activation, self._call, no_letter)):
            yield

    @asynccontextmanager
    async def storing(self) -> AsyncIterator[None]:
        """Store results and answer for them."""
        query = self.topology.subjects.query
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(answering(self.connection, query(RESULT), self._find))
            await stack.enter_async_context(answering(self.connection, query(RESULTS), self._list))
            consumption = Consumption(self.publisher, self.topology.storing, self._store, no_letter)
            await stack.enter_async_context(self._consuming(consumption))
            yield

    @asynccontextmanager
    async def hearing_cancels(self) -> AsyncIterator[None]:
        subscription = await self.connection.subscribe(
            self.topology.subjects.all_cancels, lambda message: self.cancels.append(message.data.decode())
        )
        yield
        await self.connection.unsubscribe(subscription)

    @asynccontextmanager
    async def _consuming(self, consumption: Consumption) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        running = asyncio.create_task(consumption.run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await running


def no_letter(delivery: Delivery, outcome: object) -> list[Outgoing]:
    raise AssertionError(f"given up: {delivery} {outcome}")


def succeeded(invocation: Invocation, content_type: str, body: bytes) -> Result:
    result = Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        state=ResultState.SUCCEEDED,
        status_code=200,
        timings=Timings(enqueued_at=invocation.enqueued_at, started_at=now(), finished_at=now()),
        worker="f-worker",
        attempts=1,
    )
    return with_body(result, content_type, body)


def now() -> datetime:
    return datetime.now(UTC)
