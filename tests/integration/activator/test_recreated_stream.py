"""The reaper after the DISPATCH stream was deleted and created again, so that sequences start at 1 again."""

from datetime import datetime, timedelta

from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import dispatched_record
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import ONE_FUNCTION
from tests.stored_messages import iter_messages
from tests.ticket_keys import TICKETS


async def test_invocations_in_a_recreated_stream_expire_at_their_own_deadline(nats_account: NatsAccount) -> None:
    topology, metrics, start = stream_topology(nats_settings(nats_account.url)), ActivatorMetrics(), utcnow()
    now = [start]
    async with connect_nats(ConnectionOptions((nats_account.url,))) as nats:
        publisher, stream = Publisher(nats), topology.stream_name(Stream.DISPATCH)
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

        async def publish_dispatch(id_: str, deadline: datetime) -> None:
            invocation = Invocation(
                invocation_id=id_, serverless_request_id="f", function_id="f", enqueued_at=start, timeout_seconds=60
            )
            dispatch = Dispatch(invocation=invocation, deadline=deadline, dispatched_at=start)
            headers = ticket_headers(TICKETS.sign_record(id_, dispatched_record(dispatch)))
            message = OutgoingMessage(topology.subjects.dispatch("f"), encode(dispatch), headers=headers)
            await publisher.publish(message)

        async def remaining() -> list[str]:
            messages = iter_messages(nats, stream, topology.subjects.dispatch("f"))
            return [decode(each.data, Dispatch).invocation.invocation_id async for each in messages]

        await ensure_with_retry(nats, topology.streams, [topology.record_bucket], topology.shared_consumers())
        for id_ in ("a", "b", "c"):
            await publish_dispatch(id_, start + timedelta(minutes=1))
        now[0] = start + timedelta(seconds=30)
        await reaper.run_once()
        await api_request(nats, f"STREAM.DELETE.{stream}")
        await ensure_with_retry(nats, topology.streams)
        await publish_dispatch("long", start + timedelta(hours=1))
        await publish_dispatch("short", start + timedelta(minutes=2))
        now[0] = start + timedelta(minutes=1.5)
        await reaper.run_once()
        assert await remaining() == ["long", "short"], (
            "only the deadlines of earlier messages with the same sequences have passed"
        )
        now[0] = start + timedelta(minutes=3)
        await reaper.run_once()
        assert await remaining() == ["long"]
