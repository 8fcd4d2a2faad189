"""Messages that nobody of the platform has sent: they end as dead letters, and nobody ends of them."""

from collections.abc import AsyncIterator

import pytest

from gpu_runtime.activator.capacity import FunctionCapacity
from gpu_runtime.activator.demand_publisher import DemandPublisher
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.invocation_reaper import InvocationReaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import DispatchSettings, ReaperSettings
from gpu_runtime.activator.terminal_results import TerminalResultPublisher
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import DeadLetterDelivery, Delivery, OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_with_retry, messages_by_subject
from gpu_runtime.jetstream.stream_messages import iter_messages
from gpu_runtime.process.nats_setup import stream_topology
from localcluster.nats_server import NatsAccount
from tests.integration.activator.activator_harness import nats_settings
from tests.integration.activator.function_lister_stubs import NO_FUNCTIONS


@pytest.fixture
def topology(nats_account: NatsAccount) -> StreamTopology:
    return stream_topology(nats_settings(nats_account.url))


@pytest.fixture
async def nats(nats_account: NatsAccount, topology: StreamTopology) -> AsyncIterator[NatsConnection]:
    async with connect_nats(ConnectionOptions((nats_account.url,))) as made:
        await ensure_with_retry(made, topology.streams, [topology.record_bucket], topology.shared_consumers())
        yield made


def invocation(request_id: str, id_: str = "inv-1") -> Invocation:
    return Invocation(invocation_id=id_, serverless_request_id=request_id, timeout_seconds=60)


async def dead_letters(nats: NatsConnection, topology: StreamTopology) -> list[DeadLetter]:
    found = iter_messages(nats, topology.dead_letter_stream.name, topology.subjects.all_dead_letters)
    return [decode(each.data, DeadLetter) async for each in found]


@pytest.mark.parametrize(
    ("queue", "said"),
    [
        ("f", invocation("Not.A.Token")),
        ("f", invocation("g")),
        ("f", invocation("f", "two words")),
        ("NOT-A-FUNCTION", invocation("f")),
    ],
)
async def test_reaper_dead_letters_messages_without_a_valid_function(
    nats: NatsConnection, topology: StreamTopology, queue: str, said: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatch = Dispatch(invocation=said, deadline=utcnow(), dispatched_at=utcnow())
    await publisher.publish(OutgoingMessage(f"{topology.subjects.prefix}.dispatch.{queue}", encode(dispatch)))
    endings = TerminalResultPublisher(topology.subjects, publisher, metrics)
    records, reaping = (
        KeyValueBucket(nats, publisher, topology.record_bucket),
        ReaperSettings(deleted_function_grace_seconds=0.001, deadline_grace_seconds=0.001),
    )
    reaper = InvocationReaper(nats, topology, records, NO_FUNCTIONS, endings, reaping, metrics, utcnow)
    for _ in range(100):
        await reaper.run_once()
        if not await messages_by_subject(nats, topology.streams[1].name, ">"):
            break
    (letter,) = await dead_letters(nats, topology)
    assert (letter.failure_class, letter.data) == (FailureClass.BAD_MESSAGE, encode(dispatch))


@pytest.mark.parametrize("said", [invocation("Not.A.Token"), invocation("g"), invocation("f", "two words")])
async def test_dispatcher_dead_letters_messages_on_the_wrong_subject(
    nats: NatsConnection, topology: StreamTopology, said: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatcher = Dispatcher(
        topology,
        publisher,
        KeyValueBucket(nats, publisher, topology.record_bucket),
        NO_FUNCTIONS,
        FunctionCapacity(float),
        DemandPublisher(nats, topology.subjects, float),
        TerminalResultPublisher(topology.subjects, publisher, metrics),
        DispatchSettings(unknown_function_grace_seconds=0),
        metrics,
        utcnow,
    )
    delivery = Delivery(topology.subjects.invoke("f"), encode(said), {}, "INVOKE", 1, 1, utcnow())
    outcome = await dispatcher.handle(delivery)
    assert isinstance(outcome, DeadLetterDelivery)
    assert outcome.failure_class == FailureClass.BAD_MESSAGE
    for each in dispatcher.on_dead_letter(delivery, outcome):
        await publisher.publish(each)
    (letter,) = await dead_letters(nats, topology)
    assert (letter.serverless_request_id, letter.data) == ("f", encode(said))
