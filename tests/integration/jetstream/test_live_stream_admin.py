"""`ensure_*` creates and updates streams, consumers and buckets, or reports the field that cannot be changed."""

import asyncio
from dataclasses import replace

import pytest

from gpu_runtime.contract.messages.streams import StreamLimits, StreamTopology
from gpu_runtime.contract.messages.subjects import Stream, Subjects
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import ConfigMismatch, JetStreamApiError, NatsNotFound
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import (
    delete_consumer,
    ensure_bucket,
    ensure_consumer,
    ensure_stream,
    ensure_with_retry,
    messages_by_subject,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec
from tests.bulk_publish import consumer_info

WORK = StreamSpec(name="WORK", subjects=("work.*",), retention="workqueue", discard="new", max_bytes=10_000_000)


async def stream_config(connection: NatsConnection, stream: str) -> dict[str, object]:
    config: dict[str, object] = (await api_request(connection, f"STREAM.INFO.{stream}"))["config"]
    return config


async def test_ten_processes_create_the_streams_concurrently(nats_connection: NatsConnection) -> None:
    topology = StreamTopology()

    async def create() -> None:
        await ensure_with_retry(
            nats_connection, topology.streams, [topology.record_bucket], topology.shared_consumers()
        )

    await asyncio.gather(*(create() for _ in range(10)))
    names = (await api_request(nats_connection, "STREAM.NAMES"))["streams"]
    prefix = "RUNTIME_SERVERLESS_"
    assert sorted(names) == sorted(
        [f"{prefix}INVOKE", f"{prefix}DISPATCH", f"{prefix}RESULT", f"{prefix}DLQ", f"KV_{prefix}STATE"]
    )
    invoke = await stream_config(nats_connection, f"{prefix}INVOKE")
    assert (invoke["retention"], invoke["storage"], invoke["discard"]) == ("workqueue", "file", "new")
    assert "max_age" not in invoke or invoke["max_age"] == 0


async def test_two_installations_share_an_account(nats_connection: NatsConnection) -> None:
    for prefix in ("runtime.serverless", "other"):
        topology = StreamTopology(Subjects(prefix))
        await ensure_with_retry(
            nats_connection, topology.streams, [topology.record_bucket], topology.shared_consumers()
        )


async def test_mutable_stream_limits_are_updated(nats_connection: NatsConnection, publisher: Publisher) -> None:
    limited = replace(WORK, max_messages_per_subject=10)
    await ensure_stream(nats_connection, limited)
    await publisher.publish(OutgoingMessage("work.a", b"1"))
    await ensure_stream(nats_connection, replace(limited, max_messages_per_subject=5, max_bytes=20_000_000))
    config = await stream_config(nats_connection, "WORK")
    assert (config["max_bytes"], config["max_msgs_per_subject"]) == (20_000_000, 5)


async def test_lower_limit_deletes_no_stored_message(nats_connection: NatsConnection, publisher: Publisher) -> None:
    """JetStream would delete the messages above the new limit, so the limit is not lowered."""
    limited = replace(WORK, max_messages_per_subject=10)
    await ensure_stream(nats_connection, limited)
    for number in range(10):
        await publisher.publish(OutgoingMessage("work.a", b"%d" % number * 100))
    await ensure_stream(nats_connection, replace(limited, max_messages_per_subject=5, max_bytes=200))
    config = await stream_config(nats_connection, "WORK")
    assert await messages_by_subject(nats_connection, "WORK", "work.*") == {"work.a": 10}
    assert (config["max_bytes"], config["max_msgs_per_subject"]) == (10_000_000, 10)


INCOMPATIBLE_STREAMS = {
    "retention": (
        replace(WORK, retention="limits"),
        "stream WORK exists with retention 'workqueue', but the settings require 'limits'",
    ),
    "storage": (
        replace(WORK, storage="memory"),
        "stream WORK exists with storage 'file', but the settings require 'memory'",
    ),
    "replicas": (replace(WORK, replicas=3), "stream WORK .*num_replicas 1, but the settings require 3"),
}


@pytest.mark.parametrize("field", INCOMPATIBLE_STREAMS)
async def test_incompatible_stream_is_reported_and_unchanged(nats_connection: NatsConnection, field: str) -> None:
    desired, message = INCOMPATIBLE_STREAMS[field]
    await ensure_stream(nats_connection, WORK)
    before = await stream_config(nats_connection, "WORK")
    with pytest.raises(ConfigMismatch, match=message):
        await ensure_stream(nats_connection, desired)
    assert await stream_config(nats_connection, "WORK") == before


async def test_overlapping_subjects_of_another_stream_are_rejected(nats_connection: NatsConnection) -> None:
    await ensure_stream(nats_connection, WORK)
    with pytest.raises(JetStreamApiError, match="cannot create stream OTHER: subjects overlap"):
        await ensure_stream(nats_connection, replace(WORK, name="OTHER"))


async def test_consumer_is_created_updated_and_deleted(nats_connection: NatsConnection) -> None:
    await ensure_stream(nats_connection, WORK)
    spec = ConsumerSpec("WORK", "fn-a", filter_subject="work.a", ack_wait_seconds=2, inactive_threshold_seconds=60)
    for each in (spec, spec, replace(spec, ack_wait_seconds=5)):
        await ensure_consumer(nats_connection, each)
    config = (await api_request(nats_connection, "CONSUMER.INFO.WORK.fn-a"))["config"]
    assert (config["ack_wait"], config["max_deliver"], config["max_ack_pending"]) == (5_000_000_000, -1, -1)
    for _ in range(2):
        await delete_consumer(nats_connection, spec)
    with pytest.raises(NatsNotFound):
        await consumer_info(nats_connection, spec)


async def test_consumer_of_a_missing_stream_is_rejected(nats_connection: NatsConnection) -> None:
    with pytest.raises(NatsNotFound, match="cannot create consumer c of stream NONE: stream not found"):
        await ensure_consumer(nats_connection, ConsumerSpec("NONE", "c"))


async def test_overlapping_consumers_of_a_work_queue_are_rejected(nats_connection: NatsConnection) -> None:
    await ensure_stream(nats_connection, WORK)
    await ensure_consumer(nats_connection, ConsumerSpec("WORK", "one", filter_subject="work.a"))
    await ensure_consumer(nats_connection, ConsumerSpec("WORK", "two", filter_subject="work.b"))
    with pytest.raises(JetStreamApiError, match="cannot create consumer all of stream WORK"):
        await ensure_consumer(nats_connection, ConsumerSpec("WORK", "all"))


async def test_messages_of_a_deleted_consumer_remain_for_the_next(
    nats_connection: NatsConnection, publisher: Publisher
) -> None:
    topology = StreamTopology(limits=StreamLimits(consumer_inactive_threshold_seconds=60))
    await ensure_with_retry(nats_connection, topology.streams, (), [topology.dispatch_consumer("doubling")])
    subject = topology.subjects.dispatch("doubling")
    await publisher.publish(OutgoingMessage(subject, b"1"))
    await delete_consumer(nats_connection, topology.dispatch_consumer("doubling"))
    await ensure_consumer(nats_connection, topology.dispatch_consumer("doubling"))
    assert (await consumer_info(nats_connection, topology.dispatch_consumer("doubling")))["num_pending"] == 1
    assert await messages_by_subject(nats_connection, topology.stream_name(Stream.DISPATCH), subject) == {subject: 1}


async def test_bucket_is_created_and_updated(nats_connection: NatsConnection) -> None:
    spec = BucketSpec(name="STATE", ttl_seconds=100, republish_to="changes")
    for each in (spec, spec, replace(spec, ttl_seconds=200)):
        await ensure_bucket(nats_connection, each)
    assert (await stream_config(nats_connection, "KV_STATE"))["max_age"] == 200_000_000_000
