"""Streams and handlers that several tests use."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace

from gpu_runtime.backoff import Backoff
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Delivery, Done, GiveUp, Outcome, Outgoing
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.pull_consumer import Consumption, Policy
from gpu_runtime.jetstream.puller import Patience
from gpu_runtime.jetstream.stream_admin import ensure_stream
from gpu_runtime.jetstream.stream_specs import ConsumerSpec, StreamSpec

WORK = StreamSpec(name="WORK", subjects=("work.*",), retention="workqueue", discard="new")
DEAD = StreamSpec(name="DEAD", subjects=("dead.*",))
TAKERS = ConsumerSpec("WORK", "takers", ack_wait=30)
BRIEF = replace(TAKERS, ack_wait=2)
"""For tests that wait for its end. A busy machine may well miss a time that is much shorter."""

QUICK = Policy(
    at_once=8, attempts=5, backoff=Backoff(first=0.05, longest=0.2, spread=0), patience=Patience(5, heartbeat=0.5)
)


@dataclass
class Seen:
    """A handler that remembers what it saw."""

    answer: Callable[[Delivery], Awaitable[Outcome]] | None = None
    deliveries: list[Delivery] = field(default_factory=list)

    async def __call__(self, delivery: Delivery) -> Outcome:
        self.deliveries.append(delivery)
        return await self.answer(delivery) if self.answer else Done()

    @property
    def data(self) -> Counter[bytes]:
        return Counter(each.data for each in self.deliveries)


def to_dead(delivery: Delivery, outcome: GiveUp) -> list[Outgoing]:
    return [Outgoing("dead.work", delivery.data, f"dead-{delivery.sequence}", {"Reason": outcome.reason})]


async def make_streams(connection: Connection) -> None:
    await ensure_stream(connection, WORK)
    await ensure_stream(connection, DEAD)


@asynccontextmanager
async def consuming(
    publisher: Publisher, handler: Seen, policy: Policy = QUICK, spec: ConsumerSpec = TAKERS
) -> AsyncIterator[Consumption]:
    """Consume for the length of the block, then stop in an orderly way."""
    stopping = asyncio.Event()
    consumption = Consumption(publisher, spec, handler, to_dead, policy)
    running = asyncio.create_task(consumption.run(stopping))
    try:
        yield consumption
    finally:
        stopping.set()
        await running
