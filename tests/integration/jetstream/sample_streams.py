"""Streams, consumers and handlers that several tests share."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import AckDelivery, DeadLetterDelivery, Delivery, DeliveryOutcome, OutgoingMessage
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import ConsumeOptions, OnDeadLetter, PullConsumer
from gpu_runtime.jetstream.puller import PullOptions
from gpu_runtime.jetstream.stream_admin import ensure_stream
from gpu_runtime.jetstream.stream_specs import ConsumerSpec, StreamSpec

WORK_STREAM = StreamSpec(name="WORK", subjects=("work.*",), retention="workqueue", discard="new")
DEAD_LETTER_STREAM = StreamSpec(name="DEAD", subjects=("dead.*",))
CONSUMER = ConsumerSpec("WORK", "takers", ack_wait_seconds=30)
SHORT_ACK_WAIT_CONSUMER = replace(CONSUMER, ack_wait_seconds=2)
"""For tests that wait until the ack wait ends. On a busy machine, a much shorter time makes tests unstable."""

QUICK_POLICY = ConsumeOptions(
    max_in_flight=8,
    max_deliveries=5,
    backoff=Backoff(initial_seconds=0.05, max_seconds=0.2, jitter=0),
    pull_options=PullOptions(5, heartbeat=0.5),
)


@dataclass
class RecordingHandler:
    """A handler that records its deliveries."""

    respond: Callable[[Delivery], Awaitable[DeliveryOutcome]] | None = None
    deliveries: list[Delivery] = field(default_factory=list)

    async def __call__(self, delivery: Delivery) -> DeliveryOutcome:
        self.deliveries.append(delivery)
        return await self.respond(delivery) if self.respond else AckDelivery()

    @property
    def delivery_counts(self) -> Counter[bytes]:
        return Counter(each.data for each in self.deliveries)


def dead_letter_with(publisher: Publisher) -> OnDeadLetter:
    """Return a callback that publishes dead letters with this publisher."""

    async def dead_letter(delivery: Delivery, outcome: DeadLetterDelivery) -> None:
        headers = {"Reason": outcome.reason}
        await publisher.publish(OutgoingMessage("dead.work", delivery.data, f"dead-{delivery.sequence}", headers))

    return dead_letter


async def create_streams(connection: NatsConnection) -> None:
    await ensure_stream(connection, WORK_STREAM)
    await ensure_stream(connection, DEAD_LETTER_STREAM)


@asynccontextmanager
async def running_consumer(
    publisher: Publisher,
    handler: RecordingHandler,
    policy: ConsumeOptions = QUICK_POLICY,
    spec: ConsumerSpec = CONSUMER,
) -> AsyncIterator[PullConsumer]:
    """Run a consumer during the block, then stop it gracefully."""
    stopping = asyncio.Event()
    consumer = PullConsumer(publisher.connection, spec, handler, dead_letter_with(publisher), policy)
    running = asyncio.create_task(consumer.run(stopping))
    try:
        yield consumer
    finally:
        stopping.set()
        await running
