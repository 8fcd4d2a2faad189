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
from gpu_runtime.contract.messages.invocation_id import invocation_id_problems
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Known, Stage, headers_of, taken_back
from gpu_runtime.contract.messages.message_codec import encode, utc
from gpu_runtime.contract.messages.result import Failure, Result, ResultState, Timings
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.runtime_api.clock import Clock
from gpu_runtime.runtime_api.invocations.enqueue import Ingress, Taken
from gpu_runtime.runtime_api.invocations.function_lookup import Functions
from gpu_runtime.runtime_api.invocations.invocation_admission import Terms, accepted
from gpu_runtime.runtime_api.invocations.listing import Listing
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.record_store import Records
from gpu_runtime.runtime_api.invocations.requests import InvocationState, Invoke, ListInvocations
from gpu_runtime.runtime_api.invocations.result_client import Results
from gpu_runtime.runtime_api.invocations.sync_wait import Waiting
from gpu_runtime.runtime_api.invocations.view import InvocationView, record_view, result_view, state_of
from gpu_runtime.runtime_api.nats_client import Messaging

ATTEMPTS = 10
"""How often a cancellation is tried against others who write the same record: it has few stages to pass through."""
GRACE = timedelta(seconds=30)
"""How long after its deadline an invocation that nobody dispatched is taken for left behind."""


@dataclass(frozen=True)
class Invocations:
    messaging: Messaging
    functions: Functions
    ingress: Ingress
    results: Results
    terms: Terms
    longest_wait: float
    """Seconds that a synchronous caller is made to wait at most."""
    clock: Clock
    metrics: InvocationMetrics

    @property
    def records(self) -> Records:
        return self.ingress.records

    async def invoke(self, request: Invoke) -> tuple[InvocationView, bool]:
        """The invocation, and whether its answer is still to come from a call that was taken now."""
        with self.metrics.refusals(request.mode):
            invocation = accepted(request, self.terms)
            await self.functions.must_exist(invocation.serverless_request_id)
            if request.mode == "sync":
                return await self._answered(invocation), False
            taken = await self._take(invocation)
        return record_view(invocation.invocation_id, taken.record), taken.new

    async def get(self, invocation_id: str) -> InvocationView:
        found = await self._find(invocation_id)
        if found is not None and found.record.stage is not Stage.TERMINAL:
            await self._expire(invocation_id, found)
            return record_view(invocation_id, found.record)
        result = await self._result(invocation_id, found)
        if result is not None:
            return result_view(result)
        if found is None:
            raise _unknown(invocation_id)
        return structs.replace(record_view(invocation_id, found.record), result_gone=True)

    async def list(self, query: ListInvocations) -> tuple[list[InvocationView], str | None]:
        listing = Listing(self.messaging.connection, self.messaging.topology, self.records, self.results)
        return await listing.page(query)

    async def cancel(self, invocation_id: str) -> tuple[InvocationView, bool]:
        """The invocation, and whether its end is still to come. Conflict where it ended in another way."""
        for _ in range(ATTEMPTS):
            found = await self._find(invocation_id)
            if found is None or found.record.stage is Stage.TERMINAL:
                return await self._ended(invocation_id, found), False
            marked = await self._mark(invocation_id, found)
            if marked is not None:
                await self._tell(invocation_id, marked)
                return record_view(invocation_id, marked.record), True
        raise Conflict(f"invocation {invocation_id}: somebody else wrote at the same time; try again")

    async def _take(self, invocation: Invocation) -> Taken:
        taken = await self.ingress.take(invocation)
        self.metrics.taken(invocation.mode, new=taken.new)
        return taken

    async def _answered(self, invocation: Invocation) -> InvocationView:
        began, waiting = time.monotonic(), Waiting(self.records, self.results)
        within = min(invocation.timeout_seconds, self.longest_wait)
        with self.messaging.replies.expect() as expected:
            taken = await self._take(structs.replace(invocation, reply_to=expected.subject))
            if taken.record.stage is Stage.TERMINAL:
                return await self.get(invocation.invocation_id)
            left = within - (time.monotonic() - began)
            if taken.new:
                result = await waiting.for_reply(expected, invocation.invocation_id, left)
            else:  # the worker replies to who was first
                result = await waiting.for_record(invocation.invocation_id, left)
        self.metrics.waited(time.monotonic() - began, answered=result is not None)
        if result is None:
            text = f"no answer within {within:g} s; invocation {invocation.invocation_id} goes on"
            raise SyncTimeout(f"{text}, and its result can be fetched when it has ended", invocation.invocation_id)
        return result_view(result)

    async def _find(self, invocation_id: str) -> Known | None:
        if any(invocation_id_problems(invocation_id)):  # no invocation can have it
            raise _unknown(invocation_id)
        return await self.records.read(invocation_id)

    async def _result(self, invocation_id: str, found: Known | None) -> Result | None:
        try:
            return await self.results.find(invocation_id)
        except Unavailable as away:
            if found is None:
                raise
            text = f"invocation {invocation_id} has ended: {state_of(found.record)}; its result cannot be read now"
            raise Unavailable(f"{text}: {away.message}", retry_after=away.retry_after) from away

    async def _expire(self, invocation_id: str, found: Known) -> None:
        """Give an end to what nobody will: its message was never sent, and who should have sent it is gone."""
        now = self.clock.now()
        if is_left_behind(found.record, now):
            failure = Failure(
                failure_class=FailureClass.TIMED_OUT, message="its time was over before it was dispatched"
            )
            result = early_end(invocation_id, found.record, ResultState.EXPIRED, failure, now)
            await self._publish(result, found)

    async def _ended(self, invocation_id: str, found: Known | None) -> InvocationView:
        if found is None:
            result = await self._result(invocation_id, found)
            if result is None:
                raise _unknown(invocation_id)
            view = result_view(result)
        else:
            view = record_view(invocation_id, found.record)
        if view.state is not InvocationState.CANCELLED:
            raise Conflict(f"invocation {invocation_id} has ended already: {view.state}")
        return view

    async def _mark(self, invocation_id: str, found: Known) -> Known | None:
        """The record as cancelled; None where somebody else wrote it first."""
        if found.record.cancelled:  # by a request that may have died before it told anybody
            return found
        marked = taken_back(found.record, utc(self.clock.now()))
        revision = await self.records.update(invocation_id, marked, found.revision)
        return Known(marked, revision) if revision is not None else None

    async def _tell(self, invocation_id: str, marked: Known) -> None:
        """Whoever holds it hears that there is nothing more to do, and nobody begins it any more.

        What a worker has begun is for the worker to end: its answer may be known already, and wait to be stored.
        """
        if marked.record.stage is not Stage.RUNNING:
            failure = Failure(failure_class=FailureClass.CANCELLED, message="the caller took it back")
            result = early_end(invocation_id, marked.record, ResultState.CANCELLED, failure, self.clock.now())
            await self._publish(result, marked)
        subject = self.messaging.topology.subjects.cancel(marked.record.serverless_request_id)
        await self.messaging.connection.publish(subject, invocation_id.encode())

    async def _publish(self, result: Result, known: Known) -> None:
        subject = self.messaging.topology.subjects.result(result.serverless_request_id)
        message = Outgoing(subject, encode(result), result.message_id, headers_of(known))
        await self.messaging.publisher.publish(message)


def is_left_behind(record: InvocationRecord, now: datetime) -> bool:
    return record.stage is Stage.QUEUED and now > record.deadline + GRACE


def early_end(
    invocation_id: str, record: InvocationRecord, state: ResultState, failure: Failure, now: datetime
) -> Result:
    """The end of an invocation of which only the record is at hand."""
    return Result(
        invocation_id=invocation_id,
        serverless_request_id=record.serverless_request_id,
        state=state,
        failure=failure,
        timings=Timings(enqueued_at=record.enqueued_at, finished_at=utc(now)),
        worker=record.worker,
    )


def _unknown(invocation_id: str) -> NotFound:
    return NotFound(f"there is no invocation {invocation_id!r}, or none any more")
