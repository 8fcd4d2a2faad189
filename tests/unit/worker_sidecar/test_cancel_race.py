"""A call that starts before the record is written is aborted if the record turns out to be cancelled."""

import asyncio
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Termination
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers, worker_message_id
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.invocation_records.record_store import DirectWorkerRecords, InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import ResultPublisher
from gpu_runtime.jetstream.delivery import AckDelivery, Delivery, OutgoingMessage
from gpu_runtime.worker_sidecar.cancellation import CancellationRegistry
from gpu_runtime.worker_sidecar.dispatch_handler import DispatchHandler, DispatchHandlerOptions
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics
from gpu_runtime.worker_sidecar.retry_decision import ServedFunction

NOW = datetime(2026, 1, 1, tzinfo=UTC)
CANCELLED_RECORD = InvocationRecord(
    request_hash="0" * 64,
    serverless_request_id="f",
    function_id="f",
    termination=Termination.CANCELLED,
    enqueued_at=NOW,
    deadline=NOW,
    updated_at=NOW,
)
DISPATCH = Dispatch(
    invocation=Invocation(
        invocation_id="i", serverless_request_id="f", function_id="f", enqueued_at=NOW, timeout_seconds=60
    ),
    deadline=NOW + timedelta(seconds=60),
    dispatched_at=NOW,
)


class FakeDependencies:
    """A framework that never responds, a publisher, and a bucket with the record of a cancelled invocation."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self._called = asyncio.Event()

    def response_slot(self) -> AbstractContextManager[None]:
        return nullcontext()

    async def invoke(self, _dispatch: Dispatch, _slot: None, _attempt: int) -> Any:
        self._called.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.events.append("call ended")

    async def get(self, _id: str) -> Any:
        await self._called.wait()
        return SimpleNamespace(key="i", value=encode(CANCELLED_RECORD), revision=1)

    async def publish(self, _message: OutgoingMessage) -> None:
        await asyncio.sleep(0)
        self.events.append("result published")


async def test_result_of_a_cancelled_invocation_is_published_after_its_call_ended() -> None:
    fakes: Any = FakeDependencies()
    heartbeat: Any = SimpleNamespace(invocation_started=lambda _: None, invocation_finished=lambda _: None)
    options = DispatchHandlerOptions(
        ServedFunction("f", "f"), "w", Subjects(), 3, Backoff(initial_seconds=1, max_seconds=1), 1000, clock=lambda: NOW
    )
    delivery = Delivery(Subjects().dispatch("f"), encode(DISPATCH), ticket_headers("ticket"), "DISPATCH", 1, 1, NOW)
    results = ResultPublisher(Subjects(), fakes, worker_message_id)
    records = DirectWorkerRecords(InvocationRecordStore(fakes), "w")
    consumer = DispatchHandler(
        results,
        records,
        fakes,
        heartbeat,
        heartbeat,
        CancellationRegistry(records),
        SidecarMetrics(CollectorRegistry()),
        options,
    )
    assert await consumer.handle(delivery) == AckDelivery()
    assert fakes.events == ["call ended", "result published"]
