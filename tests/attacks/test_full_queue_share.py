"""One function fills the queues, the dead letters and the records with as many bytes as possible."""

from collections.abc import AsyncIterator
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry, messages_by_subject, stream_size
from gpu_runtime.process.clock import Clock, SystemClock
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.queue_shares import QueueShares
from gpu_runtime.runtime_api.invocations.record_shares import RecordShares
from localcluster.nats_server import NatsAccount
from tests.attacks.fast_clock import FastClock

MIB = 1024 * 1024
LIMITS = StreamLimits(
    storage="memory",
    max_bytes=32 * MIB,
    dead_letter_max_bytes=8 * MIB,
    max_dead_letters_per_subject=20,
    record_max_bytes=MIB,
)
TOPOLOGY = StreamTopology(limits=LIMITS)
ATTACKER, VICTIM = "fn-attacker", "fn-victim"
LARGE_BODY, SMALL_BODY = b"x" * 200_000, b"1"


@pytest.fixture
async def nats(nats_account: NatsAccount) -> AsyncIterator[NatsConnection]:
    async with connect_nats(ConnectionOptions((nats_account.url,), "test")) as connection:
        await ensure_with_retry(connection, TOPOLOGY.streams, [TOPOLOGY.record_bucket])
        yield connection


def invocation(function_id: str, number: int, body: bytes) -> Invocation:
    return Invocation(
        invocation_id=f"{function_id}-{number}",
        serverless_request_id=function_id,
        function_id=function_id,
        body=body,
        timeout_seconds=86400,
        enqueued_at=datetime.now(UTC),
    )


def new_shares(nats: NatsConnection, topology: StreamTopology = TOPOLOGY, clock: Clock | None = None) -> QueueShares:
    metrics, clock = InvocationMetrics(CollectorRegistry()), clock or SystemClock()
    return QueueShares(nats, topology, metrics, clock, RecordShares(nats, topology, metrics, clock))


async def store(nats: NatsConnection, subject: str, size: int) -> None:
    await Publisher(nats).publish(OutgoingMessage(subject, b"x" * size, ""))


async def enqueue(nats: NatsConnection, shares: QueueShares, sent: Invocation) -> None:
    """Enqueue as the runtime API does. A message of the invocation has about four thirds of the size of its body."""
    await shares.require(sent)
    await store(nats, TOPOLOGY.subjects.invoke(sent.function_id), len(sent.body) * 4 // 3 + 1000)


async def is_accepted(shares: QueueShares, sent: Invocation) -> bool:
    try:
        await shares.require(sent)
    except Overloaded:
        return False
    return True


@pytest.mark.parametrize("queue", [Stream.INVOKE, Stream.DISPATCH])
async def test_function_with_large_bodies_is_refused_and_others_are_dispatched(
    nats: NatsConnection, queue: Stream
) -> None:
    shares, body_bytes = new_shares(nats), [400_000, 200_000, 100_000, 50_000, 20_000, 10_000, 5_000]
    for size in body_bytes:  # the largest first, because this order allows the most bytes
        while await is_accepted(shares, invocation(ATTACKER, 0, b"x" * size)):
            await store(nats, TOPOLOGY.subjects.stream_subject(queue, ATTACKER), size * 4 // 3 + 1000)
    with pytest.raises(Overloaded, match=f"invocations of function {ATTACKER} are waiting"):
        await shares.require(invocation(ATTACKER, 0, LARGE_BODY))
    assert (await stream_size(nats, TOPOLOGY.stream_name(queue))).used_bytes < LIMITS.max_bytes / 4
    await enqueue(nats, shares, invocation(VICTIM, 1, LARGE_BODY))
    await store(nats, TOPOLOGY.subjects.dispatch(VICTIM), 300_000)


async def test_dispatch_has_capacity_for_all_accepted_invocations(nats: NatsConnection) -> None:
    """Many functions fill the queues together. Each accepted message still fits into DISPATCH."""
    shares, accepted = new_shares(nats), []
    for number in range(500):
        sent = invocation(f"fn-{number}", number, LARGE_BODY)
        try:
            await enqueue(nats, shares, sent)
        except Exception:  # noqa: BLE001 - the share or the stream is full: the caller gets 429
            break
        accepted.append(sent.function_id)
        if number % 2:
            await store(nats, TOPOLOGY.subjects.dispatch(sent.function_id), 300_000)
    for function_id in accepted:
        await store(nats, TOPOLOGY.subjects.dispatch(function_id), 270_000)
    assert len(accepted) > 20


async def test_small_invocations_in_both_queues_together_have_one_limit(nats: NatsConnection) -> None:
    """Otherwise DISPATCH could be full while INVOKE has more messages, and the activator would retry all of them."""
    topology = replace(TOPOLOGY, limits=replace(LIMITS, max_messages_per_subject=20))
    shares = new_shares(nats, topology, FastClock())
    for queue in (Stream.INVOKE, Stream.DISPATCH):
        for _ in range(10):
            await shares.require(invocation(ATTACKER, 0, SMALL_BODY))
            await store(nats, topology.subjects.stream_subject(queue, ATTACKER), 100)
    with pytest.raises(Overloaded, match=f"20 invocations of function {ATTACKER} are waiting"):
        await shares.require(invocation(ATTACKER, 0, SMALL_BODY))
    await shares.require(invocation(VICTIM, 0, SMALL_BODY))


async def test_dead_letters_of_one_function_do_not_evict_those_of_another(nats: NatsConnection) -> None:
    await store(nats, TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, VICTIM), 1000)
    for _ in range(1_150):
        await store(nats, TOPOLOGY.subjects.dead_letter(Stream.DISPATCH, ATTACKER), 100_000)
    subjects = TOPOLOGY.subjects
    letters = await messages_by_subject(nats, TOPOLOGY.dead_letter_stream.name, subjects.all_dead_letters)
    assert letters == {
        subjects.dead_letter(Stream.DISPATCH, VICTIM): 1,
        subjects.dead_letter(Stream.DISPATCH, ATTACKER): LIMITS.max_dead_letters_per_subject,
    }


async def test_full_bucket_of_records_refuses_new_invocations_and_lets_accepted_ones_finish(
    nats: NatsConnection,
) -> None:
    bucket, revisions = KeyValueBucket(nats, Publisher(nats), TOPOLOGY.record_bucket), dict[str, Any]()
    while await is_accepted(new_shares(nats), invocation(VICTIM, len(revisions), SMALL_BODY)):
        invocation_id = f"{VICTIM}-{len(revisions)}"
        revisions[invocation_id] = await bucket.create(invocation_id, b"x" * 500)
    with pytest.raises(Overloaded, match="bucket of invocation records is almost full"):
        await new_shares(nats).require(invocation(VICTIM, 0, SMALL_BODY))
    for invocation_id, revision in revisions.items():  # the record of a finished invocation is slightly longer
        assert await bucket.update(invocation_id, b"x" * 540, revision)
