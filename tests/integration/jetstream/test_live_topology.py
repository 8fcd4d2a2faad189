"""Streams, consumers and buckets become what is wanted, or the error says which field stands in the way."""

import asyncio
from dataclasses import replace

import pytest

from gpu_runtime.contract.messages.streams import Keeping, Topology
from gpu_runtime.contract.messages.subjects import Queue, Subjects
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import Misfit, NotFound, Refused
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import (
    consumer_load,
    delete_consumer,
    ensure_bucket,
    ensure_consumer,
    ensure_stream,
    ensure_until_done,
    messages_by_subject,
)
from gpu_runtime.jetstream.stream_specs import BucketSpec, ConsumerSpec, StreamSpec

WORK = StreamSpec(name="WORK", subjects=("work.*",), retention="workqueue", discard="new", max_bytes=10_000_000)


async def config(connection: Connection, stream: str) -> dict[str, object]:
    found: dict[str, object] = (await call(connection, f"STREAM.INFO.{stream}"))["config"]
    return found


async def test_ten_processes_make_the_platforms_streams_at_once(connected: Connection) -> None:
    topology = Topology()

    async def make() -> None:
        await ensure_until_done(connected, topology.streams, [topology.state], topology.consumers())

    await asyncio.gather(*(make() for _ in range(10)))
    names = (await call(connected, "STREAM.NAMES"))["streams"]
    prefix = "RUNTIME_SERVERLESS_"
    assert sorted(names) == sorted(
        [f"{prefix}INVOKE", f"{prefix}DISPATCH", f"{prefix}RESULT", f"{prefix}DLQ", f"KV_{prefix}STATE"]
    )
    invoke = await config(connected, f"{prefix}INVOKE")
    assert (invoke["retention"], invoke["storage"], invoke["discard"]) == ("workqueue", "file", "new")
    assert "max_age" not in invoke or invoke["max_age"] == 0


async def test_two_installations_share_an_account(connected: Connection) -> None:
    for prefix in ("runtime.serverless", "other"):
        topology = Topology(Subjects(prefix))
        await ensure_until_done(connected, topology.streams, [topology.state], topology.consumers())


async def test_what_may_change_is_changed(connected: Connection, publisher: Publisher) -> None:
    limited = replace(WORK, max_messages_per_subject=10)
    await ensure_stream(connected, limited)
    await publisher.publish(Outgoing("work.a", b"1"))
    await ensure_stream(connected, replace(limited, max_messages_per_subject=5, max_bytes=20_000_000))
    found = await config(connected, "WORK")
    assert (found["max_bytes"], found["max_msgs_per_subject"]) == (20_000_000, 5)


async def test_a_lower_limit_deletes_nothing_that_was_accepted(connected: Connection, publisher: Publisher) -> None:
    """JetStream itself would delete what is above it."""
    limited = replace(WORK, max_messages_per_subject=10)
    await ensure_stream(connected, limited)
    for number in range(10):
        await publisher.publish(Outgoing("work.a", b"%d" % number * 100))
    await ensure_stream(connected, replace(limited, max_messages_per_subject=5, max_bytes=200))
    found = await config(connected, "WORK")
    assert await messages_by_subject(connected, "WORK", "work.*") == {"work.a": 10}
    assert (found["max_bytes"], found["max_msgs_per_subject"]) == (10_000_000, 10)


UNFIT = {
    "retention": (
        replace(WORK, retention="limits"),
        "stream WORK exists with retention 'workqueue'; wanted is 'limits'",
    ),
    "storage": (replace(WORK, storage="memory"), "stream WORK exists with storage 'file'; wanted is 'memory'"),
    "replicas": (replace(WORK, replicas=3), "stream WORK .*num_replicas 1; wanted is 3"),
}


@pytest.mark.parametrize("field", UNFIT)
async def test_a_stream_that_does_not_fit_is_left_alone_and_named(connected: Connection, field: str) -> None:
    wanted, sentence = UNFIT[field]
    await ensure_stream(connected, WORK)
    before = await config(connected, "WORK")
    with pytest.raises(Misfit, match=sentence):
        await ensure_stream(connected, wanted)
    assert await config(connected, "WORK") == before


async def test_subjects_of_another_stream_are_refused_by_name(connected: Connection) -> None:
    await ensure_stream(connected, WORK)
    with pytest.raises(Refused, match="stream OTHER cannot be made: subjects overlap"):
        await ensure_stream(connected, replace(WORK, name="OTHER"))


async def test_a_consumer_is_made_changed_and_deleted(connected: Connection) -> None:
    await ensure_stream(connected, WORK)
    spec = ConsumerSpec("WORK", "fn-a", filter_subject="work.a", ack_wait=2, inactive_seconds=60)
    for each in (spec, spec, replace(spec, ack_wait=5)):
        await ensure_consumer(connected, each)
    found = (await call(connected, "CONSUMER.INFO.WORK.fn-a"))["config"]
    assert (found["ack_wait"], found["max_deliver"], found["max_ack_pending"]) == (5_000_000_000, -1, -1)
    for _ in range(2):
        await delete_consumer(connected, spec)
    with pytest.raises(NotFound):
        await consumer_load(connected, spec)


async def test_a_consumer_of_a_missing_stream_is_said(connected: Connection) -> None:
    with pytest.raises(NotFound, match="consumer c of stream NONE cannot be made: stream not found"):
        await ensure_consumer(connected, ConsumerSpec("NONE", "c"))


async def test_overlapping_consumers_of_a_work_queue_are_refused(connected: Connection) -> None:
    await ensure_stream(connected, WORK)
    await ensure_consumer(connected, ConsumerSpec("WORK", "one", filter_subject="work.a"))
    await ensure_consumer(connected, ConsumerSpec("WORK", "two", filter_subject="work.b"))
    with pytest.raises(Refused, match="consumer all of stream WORK cannot be made"):
        await ensure_consumer(connected, ConsumerSpec("WORK", "all"))


async def test_what_waited_for_a_deleted_consumer_waits_for_the_next(
    connected: Connection, publisher: Publisher
) -> None:
    topology = Topology(keeping=Keeping(idle_consumer_seconds=60))
    await ensure_until_done(connected, topology.streams, (), [topology.work("doubling")])
    subject = topology.subjects.dispatch("doubling")
    await publisher.publish(Outgoing(subject, b"1"))
    await delete_consumer(connected, topology.work("doubling"))
    await ensure_consumer(connected, topology.work("doubling"))
    assert (await consumer_load(connected, topology.work("doubling"))).waiting == 1
    assert await messages_by_subject(connected, topology.stream_name(Queue.DISPATCH), subject) == {subject: 1}


async def test_a_bucket_is_made_and_changed(connected: Connection) -> None:
    spec = BucketSpec(name="STATE", ttl_seconds=100, told_on="told")
    for each in (spec, spec, replace(spec, ttl_seconds=200)):
        await ensure_bucket(connected, each)
    assert (await config(connected, "KV_STATE"))["max_age"] == 200_000_000_000
