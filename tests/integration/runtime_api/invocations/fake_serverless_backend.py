"""A fake of the activator, the workers and the result store, over a real NATS server."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime

from msgspec import structs

from gpu_runtime.contract.messages.dead_letter import DeadLetterBuilder
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import new_record
from gpu_runtime.contract.messages.invocation_record import (
    REVISION_HEADER,
    InvocationRecord,
    RecordState,
    ResultStored,
    step,
)
from gpu_runtime.contract.messages.invocation_ticket import TICKET_HEADER, ticket_headers
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.result_query import (
    RESULT_QUERY,
    RESULTS_QUERY,
    GetResultRequest,
    GetResultResponse,
    ListResultsRequest,
    ListResultsResponse,
)
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import CANCEL, Stream
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import AckDelivery, Delivery, DeliveryOutcome, OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import PullConsumer
from gpu_runtime.jetstream.request_reply import serve_requests
from tests.ticket_keys import TICKETS


@dataclass
class FakeServerlessBackend:
    connection: NatsConnection
    topology: StreamTopology = field(default_factory=StreamTopology)
    respond: Callable[[Invocation], tuple[str, bytes]] = lambda invocation: (invocation.content_type, invocation.body)
    """Computes the content type and the body that the function returns."""
    invocations: list[Invocation] = field(default_factory=list)
    stored_results: dict[str, Result] = field(default_factory=dict)
    cancelled_ids: list[str] = field(default_factory=list)
    sends_replies: bool = True

    def __post_init__(self) -> None:
        self.publisher = Publisher(self.connection)
        self.records = KeyValueBucket(self.connection, self.publisher, self.topology.record_bucket)

    async def record(self, invocation_id: str) -> InvocationRecord:
        entry = await self.records.get(invocation_id)
        assert entry is not None, f"invocation {invocation_id} has no record"
        return decode(entry.value, InvocationRecord)

    async def write_record(self, invocation_id: str, record: InvocationRecord) -> None:
        entry = await self.records.get(invocation_id)
        assert entry is not None
        assert await self.records.update(invocation_id, encode(record), entry.revision)

    async def purge_record(self, invocation_id: str) -> None:
        entry = await self.records.get(invocation_id)
        assert entry is not None
        assert await self.records.purge(invocation_id, entry.revision)

    async def advance_record(self, invocation_id: str, state: RecordState, worker: str = "") -> None:
        record = await self.record(invocation_id)
        await self.write_record(invocation_id, structs.replace(record, state=state, worker=worker, updated_at=now()))

    async def dispatch(self, invocation: Invocation) -> None:
        """Publish the invocation to the dispatch stream."""
        message = Dispatch(invocation=invocation, deadline=invocation.deadline or now(), dispatched_at=now())
        subject = self.topology.subjects.dispatch(invocation.function_id)
        await self.publisher.publish(OutgoingMessage(subject, encode(message)))

    async def publish_dead_letter(
        self, source: Stream, data: bytes, sequence: int, function_id: str = "f", decoded: Invocation | None = None
    ) -> str:
        """Publish a dead letter and return its ID. It has a ticket if the consumer has decoded its message."""
        subject = self.topology.subjects.stream_subject(source, function_id)
        builder = DeadLetterBuilder(self.topology.subjects, source, TICKETS.message_id)
        headers = {REVISION_HEADER: "7", "Nats-Msg-Id": "x"} | (signed_headers(decoded) if decoded else {})
        delivery = Delivery(subject, data, headers, "S", sequence, 5, now())
        failure = Failure(failure_class=FailureClass.FUNCTION_CRASHED, message="the function crashed five times")
        ack = await self.publisher.publish(builder.message(delivery, failure, now(), decoded))
        return str(ack.seq)

    async def store_result(self, result: Result) -> None:
        """Store the result as the result store does: the first result of an invocation is kept."""
        stored = self.stored_results.setdefault(result.invocation_id, result)
        entry = await self.records.get(result.invocation_id)
        if entry is not None:
            record = step(decode(entry.value, InvocationRecord), ResultStored(now(), stored.state))
            if isinstance(record, InvocationRecord):
                await self.records.update(result.invocation_id, encode(record), entry.revision)

    async def _handle_invocation(self, delivery: Delivery) -> DeliveryOutcome:
        invocation = decode(delivery.data, Invocation)
        assert delivery.headers[REVISION_HEADER]
        self.invocations.append(invocation)
        result = succeeded_result(invocation, *self.respond(invocation))
        subject = self.topology.subjects.result(invocation.function_id)
        headers = ticket_headers(delivery.headers[TICKET_HEADER])
        await self.publisher.publish(OutgoingMessage(subject, encode(result), headers=headers))
        if invocation.reply_to and self.sends_replies:
            await self.connection.publish(invocation.reply_to, encode(result), headers=headers)
        return AckDelivery()

    async def _handle_result(self, delivery: Delivery) -> DeliveryOutcome:
        await self.store_result(decode(delivery.data, Result))
        return AckDelivery()

    async def _answer_get(self, data: bytes) -> bytes:
        return encode(GetResultResponse(result=self.stored_results.get(decode(data, GetResultRequest).invocation_id)))

    async def _answer_list(self, data: bytes) -> bytes:
        request = decode(data, ListResultsRequest)
        if request.continue_token and not request.continue_token.isdecimal():
            return encode(ListResultsResponse(error="invalid continue token"))
        matching = [
            each
            for each in reversed(self.stored_results.values())
            if each.serverless_request_id == request.serverless_request_id and request.state in (None, each.state)
        ]
        start = int(request.continue_token or 0)
        page = [structs.replace(each, body=b"") for each in matching[start : start + request.limit]]
        after = str(start + len(page)) if len(matching) > start + len(page) else ""
        return encode(ListResultsResponse(results=tuple(page), continue_token=after))

    @asynccontextmanager
    async def running_workers(self) -> AsyncIterator[None]:
        """Consume queued invocations, publish their results and reply."""
        async with self._running_consumer(
            PullConsumer(self.connection, self.topology.invoke_consumer, self._handle_invocation, fail_on_dead_letter)
        ):
            yield

    @asynccontextmanager
    async def running_result_store(self) -> AsyncIterator[None]:
        """Store published results and answer queries for them."""
        query = self.topology.subjects.query
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(serve_requests(self.connection, query(RESULT_QUERY), self._answer_get))
            await stack.enter_async_context(serve_requests(self.connection, query(RESULTS_QUERY), self._answer_list))
            consumer = PullConsumer(
                self.connection, self.topology.result_consumer, self._handle_result, fail_on_dead_letter
            )
            await stack.enter_async_context(self._running_consumer(consumer))
            # The server handles the messages of a connection in order. After this reply, it knows the subscriptions.
            await self.connection.request("$JS.API.INFO", b"", timeout_seconds=30)
            yield

    @asynccontextmanager
    async def recording_cancels(self) -> AsyncIterator[None]:
        subscription = await self.connection.subscribe(
            self.topology.subjects.all_functions(CANCEL),
            lambda message: self.cancelled_ids.append(message.data.decode()),
        )
        yield
        await self.connection.unsubscribe(subscription)

    @asynccontextmanager
    async def _running_consumer(self, consumer: PullConsumer) -> AsyncIterator[None]:
        stopping = asyncio.Event()
        running = asyncio.create_task(consumer.run(stopping))
        try:
            yield
        finally:
            stopping.set()
            await running


def signed_headers(invocation: Invocation) -> dict[str, str]:
    """Return the header with the ticket that the API signs for this invocation."""
    enqueued_at = invocation.enqueued_at or now()
    record = new_record(invocation, enqueued_at, invocation.deadline or enqueued_at)
    return ticket_headers(TICKETS.sign_record(invocation.invocation_id, record))


async def fail_on_dead_letter(delivery: Delivery, outcome: object) -> None:
    raise AssertionError(f"unexpected dead letter: {delivery} {outcome}")


def succeeded_result(invocation: Invocation, content_type: str, body: bytes) -> Result:
    result = Result(
        invocation_id=invocation.invocation_id,
        serverless_request_id=invocation.serverless_request_id,
        function_id=invocation.function_id,
        state=ResultState.SUCCEEDED,
        status_code=200,
        timings=Timings(enqueued_at=invocation.enqueued_at, started_at=now(), finished_at=now()),
        worker="f-worker",
        attempts=1,
    )
    return with_body(result, content_type, body)


def now() -> datetime:
    return datetime.now(UTC)
