"""One function creates as many invocation records as possible. The other functions still get invocations."""

from collections.abc import AsyncIterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest
from prometheus_client import CollectorRegistry

from gpu_runtime.contract.errors import Overloaded
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import StreamFull
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry, stream_size
from gpu_runtime.runtime_api.invocations.enqueue import InvocationEnqueuer
from gpu_runtime.runtime_api.invocations.metrics import InvocationMetrics
from gpu_runtime.runtime_api.invocations.queue_shares import QueueShares
from gpu_runtime.runtime_api.invocations.record_shares import RecordShares
from localcluster.nats_server import NatsAccount
from tests.attacks.fast_clock import FastClock
from tests.integration.result_store.conftest import InProcessResultStore, until
from tests.ticket_keys import TICKETS

MIB = 1024 * 1024
STREAMS: dict[str, int | str] = {
    "storage": "memory",
    "maxStreamBytes": 128 * MIB,
    "maxDeadLetterBytes": 8 * MIB,
    "maxRecordBytes": MIB,
}
LIMITS = StreamLimits(storage="memory", max_bytes=128 * MIB, dead_letter_max_bytes=8 * MIB, record_max_bytes=MIB)
TOPOLOGY = StreamTopology(limits=LIMITS)
BUCKET = TOPOLOGY.record_bucket.stream_name
ATTACKER, SECOND, VICTIM = "fn-attacker", "fn-second", "fn-victim"
MAX_RECORDS = 3000
"""More records than fit into the bucket."""


@dataclass
class Replica:
    """A replica of the runtime API, as far as it accepts invocations."""

    nats: NatsConnection
    registry: CollectorRegistry
    enqueuer: InvocationEnqueuer

    @classmethod
    def start(cls, nats: NatsConnection) -> "Replica":
        registry, clock, publisher = CollectorRegistry(), FastClock(), Publisher(nats)
        metrics = InvocationMetrics(registry)
        shares = QueueShares(nats, TOPOLOGY, metrics, clock, RecordShares(nats, TOPOLOGY, metrics, clock))
        records = InvocationRecordStore(KeyValueBucket(nats, publisher, TOPOLOGY.record_bucket))
        return cls(nats, registry, InvocationEnqueuer(records, publisher, TOPOLOGY.subjects, clock, TICKETS, shares))

    async def invoke(self, function: str, number: int) -> Invocation:
        invocation = Invocation(
            invocation_id=f"{function}-{number}",
            serverless_request_id=function,
            function_id=function,
            body=b"1",
            timeout_seconds=60,
        )
        await self.enqueuer.enqueue(invocation)
        return invocation

    async def is_accepted(self, function: str, number: int) -> bool:
        try:
            await self.invoke(function, number)
        except Overloaded:
            return False
        return True

    async def finish(self, invocation: Invocation, body: bytes = b"") -> None:
        """Do what a worker does: publish the result, and acknowledge the message of the invocation."""
        stored = await self.enqueuer.records.read(invocation.invocation_id)
        assert stored is not None
        result = Result(
            invocation_id=invocation.invocation_id,
            serverless_request_id=invocation.serverless_request_id,
            function_id=invocation.function_id,
            state=ResultState.SUCCEEDED,
            timings=Timings(finished_at=datetime.now(UTC)),
        )
        headers = ticket_headers(TICKETS.sign_record(invocation.invocation_id, stored.record))
        message = with_body(result, "text/plain", body)
        subject = TOPOLOGY.subjects.result(invocation.function_id)
        await self.enqueuer.publisher.publish(OutgoingMessage(subject, encode(message), "", headers))
        subject = TOPOLOGY.subjects.invoke(invocation.function_id)
        await api_request(self.nats, f"STREAM.PURGE.{TOPOLOGY.stream_name(Stream.INVOKE)}", {"filter": subject})

    async def fill(self, function: str, body: bytes = b"") -> int:
        """Invoke a function until the API rejects it, and finish each invocation. Return the number of invocations."""
        for number in range(MAX_RECORDS):
            try:
                invocation = await self.invoke(function, number)
            except Overloaded:
                return number
            await self.finish(invocation, body)
        raise AssertionError(f"the API accepted {MAX_RECORDS} invocations of {function}")

    async def used_part(self) -> float:
        return (await stream_size(self.nats, BUCKET)).used_bytes / LIMITS.record_max_bytes


@pytest.fixture
async def nats(nats_account: NatsAccount) -> AsyncIterator[NatsConnection]:
    async with connect_nats(ConnectionOptions((nats_account.url,), "test")) as connection:
        await ensure_with_retry(connection, TOPOLOGY.streams, [TOPOLOGY.record_bucket])
        yield connection


@pytest.fixture
async def result_store(
    tmp_path: Path, nats_account: NatsAccount, nats: NatsConnection
) -> AsyncIterator[InProcessResultStore]:
    store = InProcessResultStore(tmp_path, nats_account.url, streams=dict(STREAMS), retention={"maxBytes": MIB})
    store.start()
    await until(store.is_ready, "the result store is ready")
    yield store
    await store.stop()


async def test_function_that_has_used_its_share_of_the_records_is_refused_and_others_are_not(
    nats: NatsConnection, result_store: InProcessResultStore
) -> None:
    """The results are so large that the result store evicts most of them. Their records still count."""
    replica = Replica.start(nats)
    accepted = await replica.fill(ATTACKER, body=b"x" * 8000)
    assert 0.55 < await replica.used_part() < 0.65
    await until(lambda: is_positive(result_store, "gpu_runtime_results_evicted_total"), "results are evicted")
    with pytest.raises(Overloaded, match=f"function {ATTACKER} has about {accepted} invocation records"):
        await replica.invoke(ATTACKER, accepted)

    other_replica = Replica.start(nats)  # another replica, or the same one after a restart
    assert not await other_replica.is_accepted(ATTACKER, accepted)
    assert replica.registry.get_sample_value("gpu_runtime_invocations_over_share_total", {"share": "records"}) == 2

    assert await other_replica.fill(SECOND) > accepted / 5
    assert 0.7 < await replica.used_part() < 0.9
    for number in range(20):
        assert await other_replica.is_accepted(VICTIM, number)


async def test_records_of_unfinished_invocations_count_without_a_result_store(nats: NatsConnection) -> None:
    replica, accepted = Replica.start(nats), 0
    while await replica.is_accepted(ATTACKER, accepted):
        accepted += 1
        assert accepted < MAX_RECORDS
    assert 0.55 < await replica.used_part() < 0.65
    assert await replica.is_accepted(VICTIM, 0)


async def test_results_that_wait_for_the_result_store_still_count(
    nats: NatsConnection, result_store: InProcessResultStore
) -> None:
    replica = Replica.start(nats)
    accepted = await replica.fill(ATTACKER)
    await result_store.stop()
    for number in range(20):
        assert await replica.is_accepted(VICTIM, number)
        assert not await replica.is_accepted(ATTACKER, accepted)


async def test_rejected_invocations_leave_nothing_in_the_bucket(nats: NatsConnection) -> None:
    """The stream INVOKE has the maximum number of messages of the function. Each rejection purges a record."""
    topology = StreamTopology(limits=StreamLimits(storage="memory", max_messages_per_subject=1, record_max_bytes=MIB))
    await ensure_with_retry(nats, topology.streams, [topology.record_bucket])
    replica = Replica.start(nats)
    await replica.invoke(ATTACKER, 0)
    for number in range(1, 100):
        with pytest.raises(StreamFull):
            await replica.invoke(ATTACKER, number)

    async def is_empty() -> bool:
        return (await stream_size(nats, BUCKET)).message_count == 1

    await until(is_empty, "only the record of the accepted invocation is left", within=30)


async def is_positive(store: InProcessResultStore, metric: str) -> bool:
    return await store.metric_value(metric) > 0
