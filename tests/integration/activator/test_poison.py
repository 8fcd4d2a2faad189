"""Messages that nobody of the platform has sent: they end as dead letters, and nobody ends of them."""

from collections.abc import AsyncIterator

import pytest

from gpu_runtime.activator.capacity import Room
from gpu_runtime.activator.demand_publisher import Demand
from gpu_runtime.activator.dispatcher import Dispatcher
from gpu_runtime.activator.invocation_reaper import Reaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Dispatching, Reaping
from gpu_runtime.activator.terminal_results import Endings
from gpu_runtime.contract.messages.dead_letter import DeadLetter
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.failure_class import FailureClass
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Delivery, GiveUp, Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_until_done, messages_by_subject
from gpu_runtime.jetstream.stream_messages import kept
from gpu_runtime.process.nats_setup import topology_of
from localcluster.nats_server import Account
from tests.integration.activator.known import NONE
from tests.integration.activator.plane import nats_settings


@pytest.fixture
def topology(nats_account: Account) -> Topology:
    return topology_of(nats_settings(nats_account.url))


@pytest.fixture
async def nats(nats_account: Account, topology: Topology) -> AsyncIterator[Connection]:
    async with connection(Options((nats_account.url,))) as made:
        await ensure_until_done(made, topology.streams, [topology.state], topology.consumers())
        yield made


def invocation(request_id: str, id_: str = "inv-1") -> Invocation:
    return Invocation(invocation_id=id_, serverless_request_id=request_id, timeout_seconds=60)


async def letters(nats: Connection, topology: Topology) -> list[DeadLetter]:
    found = kept(nats, topology.dead_letters.name, topology.subjects.all_dead_letters)
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
async def test_the_reaper_buries_what_is_nobodys(
    nats: Connection, topology: Topology, queue: str, said: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatch = Dispatch(invocation=said, deadline=utcnow(), dispatched_at=utcnow())
    await publisher.publish(Outgoing(f"{topology.subjects.prefix}.dispatch.{queue}", encode(dispatch)))
    endings = Endings(topology.subjects, publisher, metrics)
    records, reaping = Bucket(nats, publisher, topology.state), Reaping(gone_seconds=0.001, grace_seconds=0.001)
    reaper = Reaper(nats, topology, records, NONE, endings, reaping, metrics, utcnow)
    for _ in range(100):
        await reaper.once()
        if not await messages_by_subject(nats, topology.streams[1].name, ">"):
            break
    (letter,) = await letters(nats, topology)
    assert (letter.failure_class, letter.data) == (FailureClass.BAD_MESSAGE, encode(dispatch))


@pytest.mark.parametrize("said", [invocation("Not.A.Token"), invocation("g"), invocation("f", "two words")])
async def test_the_dispatcher_gives_up_what_came_to_the_wrong_place(
    nats: Connection, topology: Topology, said: Invocation
) -> None:
    publisher, metrics = Publisher(nats), ActivatorMetrics()
    dispatcher = Dispatcher(
        topology,
        publisher,
        Bucket(nats, publisher, topology.state),
        NONE,
        Room(float),
        Demand(nats, topology.subjects, float),
        Endings(topology.subjects, publisher, metrics),
        Dispatching(unknown_seconds=0),
        metrics,
        utcnow,
    )
    delivery = Delivery(topology.subjects.invoke("f"), encode(said), {}, "INVOKE", 1, 1, utcnow())
    outcome = await dispatcher.handle(delivery)
    assert isinstance(outcome, GiveUp)
    assert outcome.kind == FailureClass.BAD_MESSAGE
    for each in dispatcher.abandon(delivery, outcome):
        await publisher.publish(each)
    (letter,) = await letters(nats, topology)
    assert (letter.serverless_request_id, letter.data) == ("f", encode(said))
