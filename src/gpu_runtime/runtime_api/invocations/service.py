"""Invokes functions, and gets, lists and cancels invocations.

The record of an invocation contains its state, and the result store contains its result. This process stores no state
of its own, so every replica can return invocations that another replica accepted.
"""

import time
from dataclasses import dataclass
from datetime import datetime, timedelta

from msgspec import structs

from gpu_runtime.contract.errors import AlreadyFinished, NotFound, SyncTimeout, Unavailable, WriteConflict
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
"""Maximum number of attempts to write a cancellation while other processes change the record. The number is sufficient,
because a record changes only a few times."""
EXPIRY_GRACE_PERIOD = timedelta(seconds=30)
"""Time that the API waits after the deadline before it publishes the result of an invocation that was never
dispatched."""


@dataclass(frozen=True)
class InvocationService:
    nats_client: NatsClient
    functions: FunctionLookup
    enqueuer: InvocationEnqueuer
    results: ResultClient
    limits: InvocationLimits
    max_sync_wait_seconds: float
    """Maximum time that a synchronous caller waits."""
    clock: Clock
    metrics: InvocationMetrics

    @property
    def records(self) -> InvocationRecordStore:
        return self.enqueuer.records

    async def invoke(self, request: Invoke) -> tuple[InvocationView, bool]:
        """Return the invocation, and whether this request enqueued it without waiting for its result."""
        with self.metrics.count_rejections(request.mode):
            invocation = admit_invocation(request, self.limits)
            await self.functions.must_exist(invocation.serverless_request_id)
            if request.mode == "sync":
                return await self._invoke_sync(invocation), False
            enqueued = await self._enqueue(invocation)
        return record_view(invocation.invocation_id, enqueued.record), enqueued.new

    async def get(self, invocation_id: str) -> InvocationView:
        stored = await self._find_record(invocation_id)
        if stored is not None and stored.record.state is not RecordState.TERMINAL:
            await self._expire_in_queue(invocation_id, stored)
            return record_view(invocation_id, stored.record)
        result = await self._find_result(invocation_id, stored)
        if result is not None:
            return result_view(result)
        if stored is None:
            raise _not_found(invocation_id)
        return structs.replace(record_view(invocation_id, stored.record), result_expired=True)

    async def list(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        listing = InvocationListing(self.nats_client.connection, self.nats_client.topology, self.records, self.results)
        return await listing.page(query)

    async def cancel(self, invocation_id: str) -> tuple[InvocationView, bool]:
        """Cancel the invocation. Return it, and whether its result is still pending.

        Raises AlreadyFinished if the invocation has a result with a state other than cancelled.
        """
        for _ in range(MAX_CANCEL_ATTEMPTS):
            stored = await self._find_record(invocation_id)
            if stored is None or stored.record.state is RecordState.TERMINAL:
                return await self._finished_view(invocation_id, stored), False
            marked = await self._mark_cancelled(invocation_id, stored)
            if marked is not None:
                await self._notify_cancelled(invocation_id, marked)
                return record_view(invocation_id, marked.record), True
        raise WriteConflict(f"invocation {invocation_id} changed at the same time; send the request again")

    async def _enqueue(self, invocation: Invocation) -> EnqueueResult:
        enqueued = await self.enqueuer.enqueue(invocation)
        self.metrics.count_accepted(invocation.mode, new=enqueued.new)
        return enqueued

    async def _invoke_sync(self, invocation: Invocation) -> InvocationView:
        started, waiter = time.monotonic(), SyncWaiter(self.records, self.results)
        max_wait = min(invocation.timeout_seconds, self.max_sync_wait_seconds)
        with self.nats_client.replies.expect() as expected:
            enqueued = await self._enqueue(structs.replace(invocation, reply_to=expected.subject))
            if enqueued.record.state is RecordState.TERMINAL:
                return await self.get(invocation.invocation_id)
            remaining = max_wait - (time.monotonic() - started)
            if enqueued.new:
                result = await waiter.wait_for_reply(expected, invocation.invocation_id, remaining)
            else:  # the worker replies to the first request only
                result = await waiter.wait_for_record(invocation.invocation_id, remaining)
        self.metrics.observe_sync_wait(time.monotonic() - started, answered=result is not None)
        if result is None:
            text = f"no result within {max_wait:g} s; invocation {invocation.invocation_id} continues"
            raise SyncTimeout(f"{text}; get its result later by its invocationID", invocation.invocation_id)
        return result_view(result)

    async def _find_record(self, invocation_id: str) -> RecordAtRevision | None:
        if any(invocation_id_errors(invocation_id)):  # no invocation can have this ID
            raise _not_found(invocation_id)
        return await self.records.read(invocation_id)

    async def _find_result(self, invocation_id: str, stored: RecordAtRevision | None) -> Result | None:
        try:
            return await self.results.find(invocation_id)
        except Unavailable as error:
            if stored is None:
                raise
            text = (
                f"invocation {invocation_id} has finished with the state {state_of(stored.record)}; its result is not"
                " available now"
            )
            raise Unavailable(f"{text}: {error.message}", retry_after=error.retry_after) from error

    async def _expire_in_queue(self, invocation_id: str, stored: RecordAtRevision) -> None:
        """Publish the result `expired` if the invocation was not dispatched before its deadline.

        The API process may have crashed before it published the message.
        """
        now = self.clock.now()
        if is_expired_in_queue(stored.record, now):
            failure = Failure(
                failure_class=FailureClass.TIMED_OUT, message="the deadline passed before the invocation was dispatched"
            )
            result = terminal_result(invocation_id, stored.record, ResultState.EXPIRED, failure, now)
            await self._publish_result(result, stored)

    async def _finished_view(self, invocation_id: str, stored: RecordAtRevision | None) -> InvocationView:
        if stored is None:
            result = await self._find_result(invocation_id, stored)
            if result is None:
                raise _not_found(invocation_id)
            view = result_view(result)
        else:
            view = record_view(invocation_id, stored.record)
        if view.state is not InvocationState.CANCELLED:
            raise AlreadyFinished(f"invocation {invocation_id} has already finished with the state {view.state}")
        return view

    async def _mark_cancelled(self, invocation_id: str, stored: RecordAtRevision) -> RecordAtRevision | None:
        """Mark the record as cancelled and return it. Return None if another process changed the record first."""
        if stored.record.cancelled:  # an earlier request may have crashed before it notified the workers
            return stored
        marked = cancel_record(stored.record, to_utc_milliseconds(self.clock.now()))
        revision = await self.records.update(invocation_id, marked, stored.revision)
        return RecordAtRevision(marked, revision) if revision is not None else None

    async def _notify_cancelled(self, invocation_id: str, marked: RecordAtRevision) -> None:
        """Notify the workers of the cancellation, and publish the result if no worker runs the invocation.

        A worker that runs the invocation publishes the result itself, because it may already have another result.
        """
        if marked.record.state is not RecordState.RUNNING:
            failure = Failure(failure_class=FailureClass.CANCELLED, message="the caller cancelled the invocation")
            result = terminal_result(invocation_id, marked.record, ResultState.CANCELLED, failure, self.clock.now())
            await self._publish_result(result, marked)
        subject = self.nats_client.topology.subjects.cancel(marked.record.serverless_request_id)
        await self.nats_client.connection.publish(subject, invocation_id.encode())

    async def _publish_result(self, result: Result, stored: RecordAtRevision) -> None:
        subject = self.nats_client.topology.subjects.result(result.serverless_request_id)
        message = OutgoingMessage(subject, encode(result), result.message_id, record_headers(stored))
        await self.nats_client.publisher.publish(message)


def is_expired_in_queue(record: InvocationRecord, now: datetime) -> bool:
    """Whether the deadline and the grace period passed before the invocation was dispatched."""
    return record.state is RecordState.QUEUED and now > record.deadline + EXPIRY_GRACE_PERIOD


def terminal_result(
    invocation_id: str, record: InvocationRecord, state: ResultState, failure: Failure, now: datetime
) -> Result:
    """Build the result of an invocation from its record alone."""
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        state=state,
        failure=failure,
        timings=Timings(enqueued_at=record.enqueued_at, finished_at=to_utc_milliseconds(now)),
        worker=record.worker,
    )


def _not_found(invocation_id: str) -> NotFound:
    return NotFound(f"invocation {invocation_id!r} does not exist, or its record and result have expired")
