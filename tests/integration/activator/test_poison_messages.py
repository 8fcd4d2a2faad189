"""Messages that the platform never sends are dead-lettered and stop neither the reaper nor the dispatcher."""

from collections.abc import AsyncIterator

import pytest

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics, TerminationStage
from gpu_runtime.activator.settings import DispatchSettings, ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.contract.messages.subjects import Stream
from gpu_runtime.invocation_records.ignored_messages import IgnoredMessages
from gpu_runtime.invocation_records.record_store import InvocationRecordStore
from gpu_runtime.invocation_records.result_publisher import new_termination_publisher
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery, OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry, messages_by_subject
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import NO_FUNCTIONS
from tests.stored_messages import iter_messages
from tests.ticket_keys import TICKETS


@pytest.fixture
def topology(nats_account: NatsAccount) -> StreamTopology:
    return stream_topology(nats_settings(nats_account.url))


@pytest.fixture
async def nats(nats_account: NatsAccount, topology: StreamTopology) -> AsyncIterator[NatsConnection]:
    async with connect_nats(ConnectionOptions((nats_account.url,))) as connection:
        await ensure_with_retry(connection, topology.streams, [topology.record_bucket], topology.shared_consumers())
        yield connection


def new_invocation(request_id: str, id_: str = "inv-1") -> Invocation:
    return Invocation(invocation_id=id_, serverless_request_id=request_id, function_id=request_id, timeout_seconds=60)


async def dead_letters(nats: NatsConnection, topology: StreamTopology) -> list[DeadLetter]:
    messages = iter_messages(nats, topology.dead_letter_stream.name, topology.subjects.all_dead_letters)
    return [decode(each.data, DeadLetter) async for each in messages]


@pytest.mark.parametrize(
    ("request_id", "invocation"),
    [
        ("f", new_invocation("Not.A.Token")),
        ("f", new_invocation("g")),
        ("f", new_invocation("f", "two words")),
        ("NOT-A-FUNCTION", new_invocation("f")),
    ],
)
async def test_reaper_dead_letters_messages_without_a_valid_function(
    nats: NatsConnection, topology: StreamTopology, request_id: str, invocation: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatch = Dispatch(invocation=invocation, deadline=utcnow(), dispatched_at=utcnow())
    await publisher.publish(OutgoingMessage(f"{topology.subjects.prefix}.dispatch.{request_id}", encode(dispatch)))
    results = TerminalResultPublisher(
        new_termination_publisher(topology.subjects, publisher, TICKETS), metrics, TerminationStage.DISPATCHED
    )
    records = KeyValueBucket(nats, publisher, topology.record_bucket)
    settings = ReaperSettings(deleted_function_grace_seconds=0.001, deadline_grace_seconds=0.001)
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
    for _ in range(100):
        await reaper.run_once()
        if not await messages_by_subject(nats, topology.stream_name(Stream.DISPATCH), ">"):
            break
    (letter,) = await dead_letters(nats, topology)
    assert (letter.failure_class, letter.data) == (FailureClass.BAD_MESSAGE, encode(dispatch))
    assert metrics.registry.get_sample_value("gpu_runtime_dead_letters_total", {"stream": "DISPATCH"}) == 1
    (terminated,) = metrics.terminated.collect()
    assert terminated.samples == []


@pytest.mark.parametrize(
    "invocation", [new_invocation("Not.A.Token"), new_invocation("g"), new_invocation("f", "two words")]
)
async def test_dispatcher_dead_letters_messages_on_the_wrong_subject(
    nats: NatsConnection, topology: StreamTopology, invocation: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatcher = Dispatcher(
        topology,
        publisher,
        InvocationRecordStore(KeyValueBucket(nats, publisher, topology.record_bucket)),
        NO_FUNCTIONS,
        FunctionCapacity(float),
        DemandPublisher(nats, topology.subjects, float),
        TerminalResultPublisher(
            new_termination_publisher(topology.subjects, publisher, TICKETS), metrics, TerminationStage.QUEUED
        ),
        DispatchSettings(unknown_function_grace_seconds=0),
        metrics,
        utcnow,
        TICKETS,
        IgnoredMessages(metrics.ignored_messages),
    )
    delivery = Delivery(topology.subjects.invoke("f"), encode(invocation), {}, "INVOKE", 1, 1, utcnow())
    outcome = await dispatcher.handle(delivery)
    assert isinstance(outcome, DeadLetterDelivery)
    assert outcome.failure_class == FailureClass.BAD_MESSAGE
    assert await dispatcher.on_dead_letter(delivery, outcome) is None
    (letter,) = await dead_letters(nats, topology)
    assert (letter.subject, letter.data) == (delivery.subject, encode(invocation))
    assert metrics.registry.get_sample_value("gpu_runtime_dead_letters_total", {"stream": "INVOKE"}) == 1
