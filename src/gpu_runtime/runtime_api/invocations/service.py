"""What callers do with invocations.

A record tells how far an invocation has come; the result store tells how it ended. Nothing is kept in this process: any
replica answers for what any other one took.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import structs

from gpu_runtime.contract.errors import Conflict, NotFound, SyncTimeout, Unavailable
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_id import invocation_id_errors
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    cancel_record,
    record_headers,
)
from gpu_runtime.contract.messages.message_codec import encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.invocations.enqueue import EnqueueResult, InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.invocations.listing import InvocationListing
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.record_store import InvocationRecordStore
from gpu_runtime.runtime_api.invocations.requests import InvocationState, Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.sync_wait import SyncWaiter
from gpu_runtime.runtime_api.invocations.view import InvocationView, record_view, result_view, state_of
from gpu_runtime.runtime_api.nats_client import NatsClient

MAX_CANCEL_ATTEMPTS = 10
"""How often a cancellation is tried against others who write the same record: it has few stages to pass through."""
EXPIRY_GRACE_PERIOD = timedelta(seconds=30)
"""How long after its deadline an invocation that nobody dispatched is taken for left behind."""


@dataclass(frozen=True)
class InvocationService:
    nats_client: NatsClient
    functions: FunctionLookup
    enqueuer: InvocationEnqueuer
    results: ResultClient
    limits: InvocationLimits
    max_sync_wait_seconds: float
    """Seconds that a synchronous caller is made to wait at most."""
    clock: Clock
    metrics: InvocationMetrics

    @property
    def records(self) -> InvocationRecordStore:
        return self.enqueuer.records

    async def invoke(self, request: Invoke) -> tuple[InvocationView, bool]:
        """The invocation, and whether its answer is still to come from a call that was taken now."""
        with self.metrics.count_rejections(request.mode):
            invocation = admit_invocation(request, self.limits)
            await self.functions.must_exist(invocation.serverless_request_id)
            if request.mode == "sync":
                return await self._invoke_sync(invocation), False
            taken = await self._enqueue(invocation)
        return record_view(invocation.invocation_id, taken.record), taken.new

    async def get(self, invocation_id: str) -> InvocationView:
        found = await self._find_record(invocation_id)
        if found is not None and found.record.state is not RecordState.TERMINAL:
            await self._expire_in_queue(invocation_id, found)
            return record_view(invocation_id, found.record)
        result = await self._find_result(invocation_id, found)
        if result is not None:
            return result_view(result)
        if found is None:
            raise _not_found(invocation_id)
        return structs.replace(record_view(invocation_id, found.record), result_expired=True)

    async def list(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        listing = InvocationListing(self.nats_client.connection, self.nats_client.topology, self.records, self.results)
        return await listing.page(query)

    async def cancel(self, invocation_id: str) -> tuple[InvocationView, bool]:
        """The invocation, and whether its end is still to come. Conflict where it ended in another way."""
        for _ in range(MAX_CANCEL_ATTEMPTS):
            found = await self._find_record(invocation_id)
            if found is None or found.record.state is RecordState.TERMINAL:
                return await self._finished_view(invocation_id, found), False
            marked = await self._mark_cancelled(invocation_id, found)
            if marked is not None:
                await self._notify_cancelled(invocation_id, marked)
                return record_view(invocation_id, marked.record), True
        raise Conflict(f"invocation {invocation_id}: somebody else wrote at the same time; try again")

    async def _enqueue(self, invocation: Invocation) -> EnqueueResult:
        taken = await self.enqueuer.enqueue(invocation)
        self.metrics.count_accepted(invocation.mode, new=taken.new)
        return taken

    async def _invoke_sync(self, invocation: Invocation) -> InvocationView:
        began, waiting = time.monotonic(), SyncWaiter(self.records, self.results)
        within = min(invocation.timeout_seconds, self.max_sync_wait_seconds)
        with self.nats_client.replies.expect() as expected:
            taken = await self._enqueue(structs.replace(invocation, reply_to=expected.subject))
            if taken.record.state is RecordState.TERMINAL:
                return await self.get(invocation.invocation_id)
            left = within - (time.monotonic() - began)
            if taken.new:
                result = await waiting.wait_for_reply(expected, invocation.invocation_id, left)
            else:  # the worker replies to who was first
                result = await waiting.wait_for_record(invocation.invocation_id, left)
        self.metrics.observe_sync_wait(time.monotonic() - began, answered=result is not None)
        if result is None:
            text = f"no answer within {within:g} s; invocation {invocation.invocation_id} goes on"
            raise SyncTimeout(f"{text}, and its result can be fetched when it has ended", invocation.invocation_id)
        return result_view(result)

    async def _find_record(self, invocation_id: str) -> RecordAtRevision | None:
        if any(invocation_id_errors(invocation_id)):  # no invocation can have it
            raise _not_found(invocation_id)
        return await self.records.read(invocation_id)

    async def _find_result(self, invocation_id: str, found: RecordAtRevision | None) -> Result | None:
        try:
            return await self.results.find(invocation_id)
        except Unavailable as away:
            if found is None:
                raise
            text = f"invocation {invocation_id} has ended: {state_of(found.record)}; its result cannot be read now"
            raise Unavailable(f"{text}: {away.message}", retry_after=away.retry_after) from away

    async def _expire_in_queue(self, invocation_id: str, found: RecordAtRevision) -> None:
        """Give an end to what nobody will: its message was never sent, and who should have sent it is gone."""
        now = self.clock.now()
        if is_expired_in_queue(found.record, now):
            failure = Failure(
                failure_class=FailureClass.TIMED_OUT, message="its time was over before it was dispatched"
            )
            result = terminal_result(invocation_id, found.record, ResultState.EXPIRED, failure, now)
            await self._publish_result(result, found)

    async def _finished_view(self, invocation_id: str, found: RecordAtRevision | None) -> InvocationView:
        if found is None:
            result = await self._find_result(invocation_id, found)
            if result is None:
                raise _not_found(invocation_id)
            view = result_view(result)
        else:
            view = record_view(invocation_id, found.record)
        if view.state is not InvocationState.CANCELLED:
            raise Conflict(f"invocation {invocation_id} has ended already: {view.state}")
        return view

    async def _mark_cancelled(self, invocation_id: str, found: RecordAtRevision) -> RecordAtRevision | None:
        """The record as cancelled; None where somebody else wrote it first."""
        if found.record.cancelled:  # by a request that may have died before it told anybody
            return found
        marked = cancel_record(found.record, to_utc_milliseconds(self.clock.now()))
        revision = await self.records.update(invocation_id, marked, found.revision)
        return RecordAtRevision(marked, revision) if revision is not None else None

    async def _notify_cancelled(self, invocation_id: str, marked: RecordAtRevision) -> None:
        """Whoever holds it hears that there is nothing more to do, and nobody begins it any more.

        What a worker has begun is for the worker to end: its answer may be known already, and wait to be stored.
        """
        if marked.record.state is not RecordState.RUNNING:
            failure = Failure(failure_class=FailureClass.CANCELLED, message="the caller took it back")
            result = terminal_result(invocation_id, marked.record, ResultState.CANCELLED, failure, self.clock.now())
            await self._publish_result(result, marked)
        subject = self.nats_client.topology.subjects.cancel(marked.record.serverless_request_id)
        await self.nats_client.connection.publish(subject, invocation_id.encode())

    async def _publish_result(self, result: Result, known: RecordAtRevision) -> None:
        subject = self.nats_client.topology.subjects.result(result.serverless_request_id)
        message = OutgoingMessage(subject, encode(result), result.message_id, record_headers(known))
        await self.nats_client.publisher.publish(message)


def is_expired_in_queue(record: InvocationRecord, now: datetime) -> bool:
    return record.state is RecordState.QUEUED and now > record.deadline + EXPIRY_GRACE_PERIOD


def terminal_result(
    invocation_id: str, record: InvocationRecord, state: ResultState, failure: Failure, now: datetime
) -> Result:
    """The end of an invocation of which only the record is at hand."""
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        state=state,
        failure=failure,
        timings=Timings(enqueued_at=record.enqueued_at, finished_at=to_utc_milliseconds(now)),
        worker=record.worker,
    )


def _not_found(invocation_id: str) -> NotFound:
    return NotFound(f"there is no invocation {invocation_id!r}, or none any more")
