"""The reaper processes a deleted function with a large backlog in batches, so other functions are not delayed."""

from gpu_runtime.activator.invocation_reaper import REAP_BATCH_SIZE, InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.settings import ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import dispatched_record
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.connection import connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry, messages_by_subject
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.bulk_publish import publish_many
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import NO_FUNCTIONS
from tests.ticket_keys import TICKETS


async def test_reaping_of_a_large_backlog_does_not_starve_other_functions(nats_account: NatsAccount) -> None:
    topology, metrics, now = stream_topology(nats_settings(nats_account.url)), ActivatorMetrics(), utcnow()
    async with connect_nats(ConnectionOptions((nats_account.url,))) as nats:
        await ensure_with_retry(nats, topology.streams, [topology.record_bucket], topology.shared_consumers())
        publisher = Publisher(nats)

        def dispatch_message(request_id: str, number: int) -> OutgoingMessage:
            invocation = Invocation(
                invocation_id=f"{number}",
                serverless_request_id=request_id,
                function_id=request_id,
                enqueued_at=now,
                timeout_seconds=60,
            )
            dispatch = Dispatch(invocation=invocation, deadline=now.replace(year=2100), dispatched_at=now)
            headers = ticket_headers(TICKETS.sign_record(f"{number}", dispatched_record(dispatch)))
            return OutgoingMessage(topology.subjects.dispatch(request_id), encode(dispatch), headers=headers)

        many = [dispatch_message("many", number) for number in range(2 * REAP_BATCH_SIZE)]
        await publish_many(publisher, [*many, dispatch_message("few", 10_000)])
        results = TerminalResultPublisher(
            new_termination_publisher(topology.subjects, publisher, TICKETS), metrics, TerminationStage.DISPATCHED
        )
        records = KeyValueBucket(nats, publisher, topology.record_bucket)
        settings = ReaperSettings(deleted_function_grace_seconds=0.001)
        reaper = InvocationReaper(
            nats,
            topology,
            InvocationRecordStore(records),
            NO_FUNCTIONS,
            results,
            settings,
            metrics,
            utcnow,
            TICKETS,
            IgnoredMessages(metrics.ignored_messages),
        )

        async def backlogs() -> dict[str, int]:
            counts = await messages_by_subject(nats, topology.stream_name(Stream.DISPATCH), ">")
            return {subject.rpartition(".")[2]: count for subject, count in counts.items()}

        await reaper.run_once()  # records since when the functions are missing
        while len(await backlogs()) == 2:
            await reaper.run_once()
        assert await backlogs() == {"many": REAP_BATCH_SIZE}
        while await backlogs():
            await reaper.run_once()
