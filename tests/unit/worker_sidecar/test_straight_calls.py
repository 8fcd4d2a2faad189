"""A call that is under way before its record is: what comes of it when the invocation was taken back meanwhile."""

import asyncio
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace
from typing import Any

from prometheus_client import CollectorRegistry

from gpu_runtime.backoff import Backoff
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Subjects
from gpu_runtime.jetstream.delivery import NO_HEADERS, Delivery, Done, Outgoing
from gpu_runtime.worker_sidecar.cancellation import Calls
from gpu_runtime.worker_sidecar.dispatch_consumer import Terms, Work
from gpu_runtime.worker_sidecar.metrics import SidecarMetrics

NOW = datetime(2026, 1, 1, tzinfo=UTC)
TAKEN_BACK = InvocationRecord(
    request_hash="0" * 64,
    serverless_request_id="f",
    cancelled=True,
    enqueued_at=NOW,
    deadline=NOW,
    updated_at=NOW,
)
DISPATCH = Dispatch(
    invocation=Invocation(invocation_id="i", serverless_request_id="f", enqueued_at=NOW, timeout_seconds=60),
    deadline=NOW + timedelta(seconds=60),
    dispatched_at=NOW,
)


class World:
    """A framework that answers never, a server that stores, and a bucket in which the invocation was taken back."""

    def __init__(self) -> None:
        self.happened: list[str] = []
        self._called = asyncio.Event()

    async def invoke(self, _invocation: Any) -> Any:
        self._called.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.happened.append("the call ended")

    async def get(self, _id: str) -> Any:
        await self._called.wait()
        return SimpleNamespace(value=encode(TAKEN_BACK), revision=1)

    async def publish(self, _message: Outgoing) -> None:
        await asyncio.sleep(0)
        self.happened.append("the result was stored")


async def test_what_was_taken_back_is_said_to_be_over_when_its_call_is() -> None:
    world: Any = World()
    silent: Any = SimpleNamespace(started=lambda _: None, finished=lambda _: None)
    terms = Terms("f", "w", Subjects(), 3, Backoff(first=1, longest=1), 1000, clock=lambda: NOW)
    delivery = Delivery(Subjects().dispatch("f"), encode(DISPATCH), NO_HEADERS, "DISPATCH", 1, 1, NOW)
    work = Work(world, world, world, silent, silent, Calls(), SidecarMetrics(CollectorRegistry()), terms)
    assert await work.handle(delivery) == Done()
    assert world.happened == ["the call ended", "the result was stored"]
