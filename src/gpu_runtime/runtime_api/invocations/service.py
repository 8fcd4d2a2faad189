"""Invokes functions, and gets, lists and cancels invocations.

The record of an invocation contains its state, and the result store contains its result. This process stores no state
of its own, so every replica can return invocations that another replica accepted.
"""

import contextlib
from dataclasses import dataclass

from msgspec import structs

from gpu_runtime.contract.errors import AlreadyFinished, NotFound, SyncTimeout, Unavailable
from gpu_runtime.contract.messages.invocation import Invocation, invocation_id_errors
from gpu_runtime.contract.messages.invocation_record import (
    NO_TAKEOVER,
    CancelRequested,
    DeadlinePassed,
    RecordAtRevision,
)
from gpu_runtime.contract.messages.result import Result
from gpu_runtime.contract.timing import queue_expiry_grace
from gpu_runtime.invocation_records.record_store import InvocationRecordStore, RecordMissing
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.process.clock import Clock
from gpu_runtime.runtime_api.invocations.enqueue import EnqueueResult, InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.invocations.listing import InvocationListing
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.requests import InvocationState, Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.sync_wait import SyncWaiter
from gpu_runtime.runtime_api.invocations.view import InvocationView, record_view, result_view, state_of
from gpu_runtime.runtime_api.nats_client import NatsClient


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
        if stored is not None and not stored.record.finished:
            await self._end_overdue(invocation_id, stored)
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
        stored = await self._find_record(invocation_id)
        if stored is not None and not stored.record.finished:
            try:
                stored = (await self.records.apply(invocation_id, CancelRequested(self.clock.now()), stored)).stored
            except RecordMissing:
                stored = None
        if stored is None or stored.record.finished:
            return await self._finished_view(invocation_id, stored), False
        await self._notify_cancelled(invocation_id, stored)
        return record_view(invocation_id, stored.record), True

    async def _enqueue(self, invocation: Invocation) -> EnqueueResult:
        enqueued = await self.enqueuer.enqueue(invocation)
        self.metrics.count_accepted(invocation.mode, new=enqueued.new)
        return enqueued

    async def _invoke_sync(self, invocation: Invocation) -> InvocationView:
        started, waiter = self.clock.monotonic(), SyncWaiter(self.records, self.results)
        max_wait = min(invocation.timeout_seconds, self.max_sync_wait_seconds)
        with self.nats_client.replies.expect() as expected:
            enqueued = await self._enqueue(structs.replace(invocation, reply_to=expected.subject))
            if enqueued.record.finished:
                return await self.get(invocation.invocation_id)
            remaining = max_wait - (self.clock.monotonic() - started)
            if enqueued.new:
                result = await waiter.wait_for_reply(expected, invocation.invocation_id, remaining)
            else:  # the worker replies to the first request only
                result = await waiter.wait_for_record(invocation.invocation_id, remaining)
        self.metrics.observe_sync_wait(self.clock.monotonic() - started, answered=result is not None)
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

    async def _end_overdue(self, invocation_id: str, stored: RecordAtRevision) -> None:
        """Publish the result of an invocation that no other process has ended long after its deadline.

        The API process may have crashed before it published the message of the invocation.
        """
        now = self.clock.now()
        grace = queue_expiry_grace(self.nats_client.topology.limits.invoke_ack_wait_seconds)
        if now - stored.record.deadline > grace:
            with contextlib.suppress(RecordMissing):
                changed = await self.records.apply(invocation_id, DeadlinePassed(now, grace), stored)
                await self._result_publisher.publish_termination(invocation_id, changed.stored, now, grace)

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

    async def _notify_cancelled(self, invocation_id: str, stored: RecordAtRevision) -> None:
        """Publish the result if no worker runs the invocation, and notify the workers of the cancellation.

        A worker that runs the invocation publishes the result itself, because it may already have another result.
        """
        await self._result_publisher.publish_termination(invocation_id, stored, self.clock.now(), NO_TAKEOVER)
        subject = self.nats_client.topology.subjects.cancel(stored.record.serverless_request_id)
        await self.nats_client.connection.publish(subject, invocation_id.encode())

    @property
    def _result_publisher(self) -> ResultPublisher:
        return ResultPublisher(self.nats_client.topology.subjects, self.nats_client.publisher)


def _not_found(invocation_id: str) -> NotFound:
    return NotFound(f"invocation {invocation_id!r} does not exist, or its record and result have expired")
