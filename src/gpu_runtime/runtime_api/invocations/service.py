"""Invokes functions, and gets, lists and cancels invocations.

The record of an invocation contains its state, and the result store contains its result. This process stores no state
of its own, so every replica can return invocations that another replica accepted.
"""

import asyncio
import contextlib
from dataclasses import dataclass, field

from msgspec import structs

from gpu_runtime.contract.errors import AlreadyFinished, NotFound, RuntimeFault, SyncTimeout, Unavailable
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
from gpu_runtime.invocation_records.result_publisher import TerminationPublisher, new_termination_publisher
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.process.clock import Clock
from gpu_runtime.process.nats_setup import fault_from_nats_error
from gpu_runtime.runtime_api.invocations.enqueue import EnqueueResult, InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.function_lookup import FunctionLookup
from gpu_runtime.runtime_api.invocations.invocation_admission import InvocationLimits, admit_invocation
from gpu_runtime.runtime_api.invocations.listing import MAX_CONCURRENT_MESSAGE_READS, InvocationListing
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.requests import InvocationState, Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import ResultClient
from gpu_runtime.runtime_api.invocations.view import InvocationView, record_view, result_view, state_of
from gpu_runtime.runtime_api.nats_client import NatsClient
from gpu_runtime.runtime_api.sync_replies import PendingResult

INITIAL_POLL_INTERVAL_SECONDS, MAX_POLL_INTERVAL_SECONDS = 1.0, 5.0
"""Interval between reads of the record while a synchronous caller waits and no reply has arrived. The interval doubles
until it reaches the maximum."""


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
    message_reads: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(MAX_CONCURRENT_MESSAGE_READS))
    """Limits how many messages all lists read at the same time."""

    @property
    def records(self) -> InvocationRecordStore:
        return self.enqueuer.records

    async def invoke(self, request: Invoke) -> tuple[InvocationView, bool]:
        """Return the invocation, and whether this request enqueued it without waiting for its result."""
        try:
            invocation = admit_invocation(request, self.limits)
            function_id = await self.functions.resolve_id(invocation.serverless_request_id)
            invocation = structs.replace(invocation, function_id=function_id)
            if request.mode == "sync":
                return await self._invoke_sync(invocation), False
            enqueued = await self._enqueue(invocation)
        except SyncTimeout:  # not a rejection: the invocation was accepted
            raise
        except (RuntimeFault, JetStreamError) as error:
            fault = error if isinstance(error, RuntimeFault) else fault_from_nats_error(error)
            self.metrics.invocations.labels(request.mode, fault.code).inc()
            raise
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
        nats, topology = self.nats_client.connection, self.nats_client.topology
        listing = InvocationListing(nats, topology, self.functions, self.records, self.results, self.message_reads)
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
        self.metrics.invocations.labels(invocation.mode, "accepted" if enqueued.new else "replayed").inc()
        return enqueued

    async def _invoke_sync(self, invocation: Invocation) -> InvocationView:
        started, id_ = self.clock.monotonic(), invocation.invocation_id
        max_wait = min(invocation.timeout_seconds, self.max_sync_wait_seconds)
        with self.nats_client.replies.expect(invocation.function_id) as expected:
            enqueued = await self._enqueue(structs.replace(invocation, reply_to=expected.subject))
            if enqueued.record.finished:
                return await self.get(id_)
            remaining = max_wait - (self.clock.monotonic() - started)
            if enqueued.new:
                result = await self._wait_for_reply(expected, id_, remaining)
            else:  # the worker replies to the first request only
                result = await self._wait_for_record(id_, remaining)
        outcome = "timed_out" if result is None else "answered"
        self.metrics.sync_wait.labels(outcome).observe(self.clock.monotonic() - started)
        if result is None:
            text = f"no result within {max_wait:g} s; invocation {id_} continues"
            raise SyncTimeout(f"{text}; get its result later by its invocationID", id_)
        return result_view(result)

    async def _wait_for_reply(self, expected: PendingResult, invocation_id: str, max_wait: float) -> Result | None:
        """Return the result that the worker sends, or None if it does not arrive within `max_wait` seconds.

        The process that ends the invocation sends the reply once. The reply is lost if the NATS connection is down at
        that time. So this method also polls the record.
        """
        loop = asyncio.get_running_loop()
        deadline, interval = loop.time() + max_wait, INITIAL_POLL_INTERVAL_SECONDS
        while (remaining := deadline - loop.time()) > 0:
            await asyncio.wait({expected.result}, timeout=min(interval, remaining))
            if expected.result.done():
                return expected.result.result()
            with contextlib.suppress(JetStreamError, Unavailable):
                if (result := await self._find_stored_result(invocation_id)) is not None:
                    return result
            interval = min(2 * interval, MAX_POLL_INTERVAL_SECONDS)
        return None

    async def _wait_for_record(self, invocation_id: str, max_wait: float) -> Result | None:
        """Return the result of an invocation whose worker replies to another request.

        The method watches the record. It returns None if the invocation does not finish within `max_wait` seconds.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max_wait), self.records.bucket.watch(invocation_id) as watch:
                while True:
                    try:
                        entry = await anext(watch)
                    except JetStreamError:
                        await asyncio.sleep(INITIAL_POLL_INTERVAL_SECONDS)
                        watch.notify()
                        continue
                    if entry is not None and self.records.decode(entry).record.finished:
                        return await self.results.find(invocation_id)
        return None

    async def _find_stored_result(self, invocation_id: str) -> Result | None:
        stored = await self.records.read(invocation_id)
        finished = stored is not None and stored.record.finished
        return await self.results.find(invocation_id) if finished else None

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
                await self._terminations.publish_termination(invocation_id, changed.stored, now, grace)

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
        await self._terminations.publish_termination(invocation_id, stored, self.clock.now(), NO_TAKEOVER)
        subject = self.nats_client.topology.subjects.cancel(stored.record.function_id)
        await self.nats_client.connection.publish(subject, invocation_id.encode())

    @property
    def _terminations(self) -> TerminationPublisher:
        client = self.nats_client
        return new_termination_publisher(client.topology.subjects, client.publisher, client.tickets)


def _not_found(invocation_id: str) -> NotFound:
    return NotFound(f"invocation {invocation_id!r} does not exist, or its record and result have expired")
