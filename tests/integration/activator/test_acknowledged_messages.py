"""The reaper deletes acknowledged messages that are still in the DISPATCH stream.

A NATS server that is killed while its disk is full can leave such messages. The tests create them with a stream that
retains acknowledged messages.
"""

from dataclasses import replace
from datetime import timedelta

from nats.aio.client import Client as Nats

from gpu_runtime.activator.invocation_reaper import ACKNOWLEDGED_SCAN_INTERVAL, InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordState
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer, ensure_with_retry
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import ONE_FUNCTION
from tests.stored_messages import iter_messages
from tests.ticket_keys import TICKETS


async def test_acknowledged_messages_that_remain_in_the_stream_are_deleted(nats_account: NatsAccount) -> None:
    topology, metrics = stream_topology(nats_settings(nats_account.url)), ActivatorMetrics()
    now = [utcnow()]
    retaining_streams = [replace(each, retention="limits") for each in topology.streams]
    async with connect_nats(ConnectionOptions((nats_account.url,))) as nats:
        await ensure_with_retry(nats, retaining_streams, [topology.record_bucket], topology.shared_consumers())
        publisher, stream = Publisher(nats), topology.stream_name(Stream.DISPATCH)
        consumer = topology.dispatch_consumer("f")
        records = KeyValueBucket(nats, publisher, topology.record_bucket)
        results = TerminalResultPublisher(
            new_termination_publisher(topology.subjects, publisher, TICKETS), metrics, TerminationStage.DISPATCHED
        )
        reaper = InvocationReaper(
            nats,
            topology,
            InvocationRecordStore(records),
            ONE_FUNCTION,
            results,
            ReaperSettings(),
            metrics,
            lambda: now[0],
            TICKETS,
            IgnoredMessages(metrics.ignored_messages),
        )
        for id_, state in (
            ("done", RecordState.TERMINAL),
            ("running", RecordState.RUNNING),
            ("not-acknowledged", RecordState.TERMINAL),
        ):
            await records.create(id_, encode(record(state)))
        for id_ in ("done", "running", "not-acknowledged"):
            await publisher.publish(dispatch_message(topology.subjects.dispatch("f"), id_))
        await publisher.publish(OutgoingMessage(topology.subjects.dispatch("f"), b"not JSON"))

        async def remaining() -> list[int]:
            return [each.sequence async for each in iter_messages(nats, stream, topology.subjects.dispatch("f"))]

        await reaper.run_once()
        assert await remaining() == [1, 2, 3, 4], "no message was delivered yet"
        await ensure_consumer(nats, consumer)
        await acknowledge(nats_account, consumer, 2)
        await reaper.run_once()
        assert await remaining() == [1, 2, 3, 4], "the scan interval has not passed"
        now[0] += ACKNOWLEDGED_SCAN_INTERVAL
        await reaper.run_once()
        assert await remaining() == [2, 3, 4], "messages that are not acknowledged or not terminal stay"
        await acknowledge(nats_account, consumer, 2)
        now[0] += ACKNOWLEDGED_SCAN_INTERVAL
        await reaper.run_once()
        assert await remaining() == [2], "an acknowledged message that cannot be decoded is deleted"


def record(state: RecordState) -> InvocationRecord:
    result_state, now = ResultState.SUCCEEDED if state is RecordState.TERMINAL else None, utcnow()
    return InvocationRecord(
        request_hash="",
        serverless_request_id="f",
        function_id="f",
        state=state,
        enqueued_at=now,
        deadline=now,
        updated_at=now,
        result_state=result_state,
    )


def dispatch_message(subject: str, id_: str) -> OutgoingMessage:
    invocation = Invocation(invocation_id=id_, serverless_request_id="f", function_id="f", timeout_seconds=60)
    deadline = utcnow() + timedelta(hours=1)
    return OutgoingMessage(subject, encode(Dispatch(invocation=invocation, deadline=deadline, dispatched_at=utcnow())))


async def acknowledge(account: NatsAccount, consumer: ConsumerSpec, count: int) -> None:
    """Pull the next messages and acknowledge them. Wait until the server confirms."""
    client = Nats()
    await client.connect(account.url)
    subscription = await client.jetstream().pull_subscribe_bind(consumer.name, stream=consumer.stream)
    for message in await subscription.fetch(count, timeout=60):
        await message.ack_sync(timeout=60)
    await client.close()
