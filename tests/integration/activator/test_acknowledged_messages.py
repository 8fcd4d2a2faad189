"""Work that was acknowledged and still lies in its queue, as a NATS server may leave it that is killed with its disk
full. Here the stream keeps what is acknowledged."""

from dataclasses import replace
from datetime import timedelta

from nats.aio.client import Client as Nats

from gpu_runtime.activator.invocation_reaper import ACKNOWLEDGED_SCAN_INTERVAL, InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordState
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer, ensure_with_retry
from gpu_runtime.jetstream.stream_messages import iter_messages
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import ONE_FUNCTION


async def test_acknowledged_messages_that_remain_in_the_stream_are_deleted(nats_account: NatsAccount) -> None:
    topology, metrics = stream_topology(nats_settings(nats_account.url)), ActivatorMetrics()
    now = [utcnow()]
    keeping = [replace(each, retention="limits") for each in topology.streams]
    async with connect_nats(ConnectionOptions((nats_account.url,))) as nats:
        await ensure_with_retry(nats, keeping, [topology.record_bucket], topology.shared_consumers())
        publisher, stream, work = (
            Publisher(nats),
            topology.stream_name(Stream.DISPATCH),
            topology.dispatch_consumer("f"),
        )
        records, endings = (
            KeyValueBucket(nats, publisher, topology.record_bucket),
            TerminalResultPublisher(topology.subjects, publisher, metrics),
        )
        reaper = InvocationReaper(
            nats, topology, records, ONE_FUNCTION, endings, ReaperSettings(), metrics, lambda: now[0]
        )
        for id_, stage in (
            ("done", RecordState.TERMINAL),
            ("odd", RecordState.RUNNING),
            ("waits", RecordState.TERMINAL),
        ):
            await records.create(id_, encode(record(stage)))
        for id_ in ("done", "odd", "waits"):
            await publisher.publish(dispatch_message(topology.subjects.dispatch("f"), id_))
        await publisher.publish(OutgoingMessage(topology.subjects.dispatch("f"), b"nobody can read it"))

        async def left() -> list[int]:
            return [each.sequence async for each in iter_messages(nats, stream, topology.subjects.dispatch("f"))]

        await reaper.run_once()
        assert await left() == [1, 2, 3, 4], "nobody has taken any yet"
        await ensure_consumer(nats, work)
        await acknowledge(nats_account, work, 2)
        await reaper.run_once()
        assert await left() == [1, 2, 3, 4], "it has looked just now"
        now[0] += ACKNOWLEDGED_SCAN_INTERVAL
        await reaper.run_once()
        assert await left() == [2, 3, 4], "what is not acknowledged, or has not ended, stays"
        await acknowledge(nats_account, work, 2)
        now[0] += ACKNOWLEDGED_SCAN_INTERVAL
        await reaper.run_once()
        assert await left() == [2], "what nobody can read was given up when it was acknowledged"


def record(stage: RecordState) -> InvocationRecord:
    ended, now = ResultState.SUCCEEDED if stage is RecordState.TERMINAL else None, utcnow()
    return InvocationRecord(
        request_hash="",
        serverless_request_id="f",
        state=stage,
        enqueued_at=now,
        deadline=now,
        updated_at=now,
        result_state=ended,
    )


def dispatch_message(subject: str, id_: str) -> OutgoingMessage:
    call = Invocation(invocation_id=id_, serverless_request_id="f", timeout_seconds=60)
    deadline = utcnow() + timedelta(hours=1)
    return OutgoingMessage(subject, encode(Dispatch(invocation=call, deadline=deadline, dispatched_at=utcnow())))


async def acknowledge(account: NatsAccount, consumer: ConsumerSpec, count: int) -> None:
    """Take the next ones, and acknowledge them so that the server confirms it."""
    client = Nats()
    await client.connect(account.url)
    taken = await client.jetstream().pull_subscribe_bind(consumer.name, stream=consumer.stream)
    for message in await taken.fetch(count, timeout=60):
        await message.ack_sync(timeout=60)
    await client.close()
