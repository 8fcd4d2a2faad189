"""The in-memory NATS server of the interleaving tests behaves like a real NATS server.

Each scenario runs on both servers. Its observations must be the same.
"""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeAlias, cast

import msgspec
import pytest
from nats.aio.msg import Msg

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import JetStreamError
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import EXPECTED_LAST_SEQUENCE_HEADER, Publisher
from gpu_runtime.jetstream.pull_consumer import ACK, IN_PROGRESS, NAK, TERM
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.jetstream.stream_admin import (
    ack_floor,
    delete_consumer,
    ensure_bucket,
    ensure_consumer,
    ensure_stream,
    messages_by_subject,
)
from gpu_runtime.jetstream.stream_messages import delete_message, next_message
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec
from tests.bulk_publish import consumer_info
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats

BUCKET = BucketSpec(name="STATE", ttl_seconds=60, republish_to="changes")
QUEUE = StreamSpec(
    name="QUEUE", subjects=("queue.*",), retention="workqueue", discard="new", max_messages_per_subject=3
)
CONSUMER = ConsumerSpec("QUEUE", "fn-a", filter_subject="queue.a", ack_wait_seconds=0.6)
DELAYED_NAK = NAK + b' {"delay": 300000000}'

Observations: TypeAlias = list[Any]


class Observed:
    """A connection, and what the scenario observed on it."""

    def __init__(self, connection: NatsConnection) -> None:
        self.connection, self.publisher = connection, Publisher(connection)
        self.bucket = KeyValueBucket(connection, self.publisher, BUCKET)
        self.observations: Observations = []
        self._received: asyncio.Queue[Msg] = asyncio.Queue()

    async def observe(self, work: Awaitable[Any]) -> None:
        try:
            self.observations.append(await work)
        except JetStreamError as error:
            self.observations.append(type(error).__name__)

    async def publish(self, subject: str, message_id: str = "", expected: int | None = None) -> None:
        headers = {} if expected is None else {EXPECTED_LAST_SEQUENCE_HEADER: str(expected)}
        await self.observe(self.publisher.publish(OutgoingMessage(subject, b"data", message_id, headers)))

    async def start_pulling(self, batch: int = 5) -> None:
        await ensure_consumer(self.connection, CONSUMER)
        await self.connection.subscribe("inbox.pull", self._received.put_nowait)
        await self.pull(batch)

    async def pull(self, batch: int) -> None:
        request = {"batch": batch, "expires": 20_000_000_000, "idle_heartbeat": 5_000_000_000}
        subject = f"$JS.API.CONSUMER.MSG.NEXT.{CONSUMER.stream}.{CONSUMER.name}"
        await self.connection.publish(subject, msgspec.json.encode(request), reply="inbox.pull")

    async def receive(self, seconds: float = 1.5) -> Msg | None:
        """Observe the next delivery: its sequence and its count. Observe None if none arrives in time."""
        try:
            async with asyncio.timeout(seconds):
                while not (message := await self._received.get()).reply:
                    pass
        except TimeoutError:
            self.observations.append(None)
            return None
        self.observations.append((message.metadata.sequence.stream, message.metadata.num_delivered))
        return message

    async def answer(self, message: Msg | None, acknowledgement: bytes) -> None:
        assert message is not None
        await self.connection.publish(message.reply, acknowledgement)

    async def count(self) -> None:
        """Observe the stored messages, after the server has processed the acknowledgements."""
        await asyncio.sleep(0.05)
        await self.observe(messages_by_subject(self.connection, QUEUE.name, "queue.*"))


async def create_and_update(on: Observed) -> None:
    await on.observe(on.bucket.create("k", b"1"))
    await on.observe(on.bucket.create("k", b"2"))
    await on.observe(on.bucket.update("k", b"3", 1))
    await on.observe(on.bucket.update("k", b"4", 1))
    await on.observe(on.bucket.update("unknown", b"4", 7))
    await on.observe(on.bucket.get("k"))
    await on.observe(on.bucket.get("unknown"))


async def purge_and_create_again(on: Observed) -> None:
    await on.observe(on.bucket.create("k", b"1"))
    await on.observe(on.bucket.purge("k", 9))
    await on.observe(on.bucket.purge("k", 1))
    await on.observe(on.bucket.get("k"))
    await on.observe(on.bucket.update("k", b"2", 1))
    await on.observe(on.bucket.create("k", b"3"))
    await on.observe(on.bucket.get("k"))


async def repeat_a_conditional_write(on: Observed) -> None:
    """The publisher repeats a write whose acknowledgement was lost, with the same message ID and condition."""
    await on.publish(BUCKET.subject("k"), "write-1", expected=0)
    await on.publish(BUCKET.subject("k"), "write-1", expected=0)
    await on.publish(BUCKET.subject("k"), "write-2", expected=0)
    await on.publish(BUCKET.subject("k"), "write-2", expected=1)
    await on.publish(BUCKET.subject("k"), "write-1", expected=2)


async def watch_a_key(on: Observed) -> None:
    async with on.bucket.watch("k") as watch:
        await on.observe(anext(watch))
        await on.observe(on.bucket.create("k", b"1"))
        await on.observe(anext(watch))


async def repeat_a_message_id(on: Observed) -> None:
    await on.publish("queue.a", "id-1")
    await on.publish("queue.a", "id-1")
    await on.publish("queue.b", "id-1")
    await on.publish("queue.a", "id-2")
    await on.observe(delete_message(on.connection, QUEUE.name, 1))
    await on.publish("queue.a", "id-1")
    await on.count()


async def fill_a_subject(on: Observed) -> None:
    for message_id in ("1", "2", "3", "4", "3"):
        await on.publish("queue.a", message_id)
    await on.publish("queue.b", "5")
    await on.observe(delete_message(on.connection, QUEUE.name, 2))
    await on.publish("queue.a", "4")
    await on.count()


async def read_and_delete_messages(on: Observed) -> None:
    for subject in ("queue.a", "queue.b", "queue.a"):
        await on.publish(subject)
    for subject, sequence in (("queue.a", 1), ("queue.a", 2), ("queue.*", 2), ("queue.a", 4), ("queue.c", 1)):
        found = await next_message(on.connection, QUEUE.name, subject, sequence)
        on.observations.append((found.subject, found.sequence, found.data) if found else None)
    for sequence in (2, 2, 1, 1, 9, 3, 3):
        await on.observe(delete_message(on.connection, QUEUE.name, sequence))
    await on.count()


async def acknowledge(on: Observed) -> None:
    for subject in ("queue.a", "queue.b", "queue.a"):
        await on.publish(subject)
    await on.start_pulling()
    await on.answer(await on.receive(), ACK)
    await on.answer(await on.receive(), TERM)
    await on.count()
    await on.receive()


async def redeliver_after_a_nak(on: Observed) -> None:
    await on.publish("queue.a")
    await on.publish("queue.a")
    await on.start_pulling()
    first, second = await on.receive(), await on.receive()
    await on.answer(second, ACK)
    await on.answer(first, NAK)
    again = await on.receive()
    await on.answer(again, DELAYED_NAK)
    await on.receive(0.15)
    await on.answer(await on.receive(), ACK)
    await on.count()


async def redeliver_after_the_ack_wait(on: Observed) -> None:
    await on.publish("queue.a")
    await on.start_pulling()
    first = await on.receive()
    second = await on.receive()
    await on.answer(first, ACK)  # an acknowledgement of an earlier delivery counts, too
    await on.count()
    await on.answer(second, ACK)
    await on.receive(1.0)


async def extend_the_ack_wait(on: Observed) -> None:
    await on.publish("queue.a")
    await on.start_pulling()
    message = await on.receive()
    for _ in range(3):
        await asyncio.sleep(0.3)
        await on.answer(message, IN_PROGRESS)
    await on.receive(0.3)
    await on.receive()


async def delete_a_message_in_flight(on: Observed) -> None:
    await on.publish("queue.a")
    await on.start_pulling()
    message = await on.receive()
    await on.observe(delete_message(on.connection, QUEUE.name, 1))
    await on.answer(message, NAK)
    await on.receive(1.0)
    await on.publish("queue.a")
    await on.receive()


async def consumer_counts(connection: NatsConnection) -> tuple[int, int, int]:
    info = await consumer_info(connection, CONSUMER)
    return info["num_pending"], info["num_ack_pending"], info["num_waiting"]


async def describe_a_consumer(on: Observed) -> None:
    await on.observe(consumer_counts(on.connection))
    for _ in range(3):
        await on.publish("queue.a")
    await on.publish("queue.b")
    await on.start_pulling(batch=2)
    first, _second = await on.receive(), await on.receive()
    await on.observe(consumer_counts(on.connection))
    await on.answer(first, ACK)
    await asyncio.sleep(0.05)
    await on.observe(ack_floor(on.connection, CONSUMER))
    await on.observe(consumer_counts(on.connection))


async def create_a_consumer_again(on: Observed) -> None:
    await on.publish("queue.a")
    await on.start_pulling(batch=1)
    await on.receive()
    await on.observe(delete_consumer(on.connection, CONSUMER))
    await on.observe(delete_consumer(on.connection, CONSUMER))
    await ensure_consumer(on.connection, CONSUMER)
    await on.pull(1)
    await on.answer(await on.receive(), ACK)
    await on.count()


async def request_and_reply(on: Observed) -> None:
    async def send() -> bytes:
        return (await on.connection.request("service", b"1", timeout_seconds=1)).data

    await on.observe(send())

    async def serve(data: bytes) -> bytes:
        return data + b"!"

    async with serve_requests(on.connection, "service", serve):
        await on.observe(send())
    await on.publish("no.stream")


SCENARIOS: tuple[Callable[[Observed], Awaitable[None]], ...] = (
    create_and_update,
    purge_and_create_again,
    repeat_a_conditional_write,
    watch_a_key,
    repeat_a_message_id,
    fill_a_subject,
    read_and_delete_messages,
    acknowledge,
    redeliver_after_a_nak,
    redeliver_after_the_ack_wait,
    extend_the_ack_wait,
    delete_a_message_in_flight,
    describe_a_consumer,
    create_a_consumer_again,
    request_and_reply,
)


async def observations_of(scenario: Callable[[Observed], Awaitable[None]], connection: NatsConnection) -> Observations:
    await ensure_stream(connection, QUEUE)
    await ensure_bucket(connection, BUCKET)
    on = Observed(connection)
    await scenario(on)
    return on.observations


@pytest.mark.parametrize("scenario", SCENARIOS, ids=lambda each: each.__name__)
async def test_both_servers_behave_alike(
    scenario: Callable[[Observed], Awaitable[None]], nats_connection: NatsConnection
) -> None:
    in_memory = cast(NatsConnection, InMemoryConnection(InMemoryNats(), "test"))
    simulated, real = await asyncio.gather(
        observations_of(scenario, in_memory), observations_of(scenario, nats_connection)
    )
    assert simulated == real
