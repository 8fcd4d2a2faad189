"""A function that leaves much work behind, and the others."""

from gpu_runtime.activator.invocation_reaper import AT_ONCE, Reaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Reaping
from gpu_runtime.activator.terminal_results import Endings
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_until_done, messages_by_subject
from gpu_runtime.process.nats_setup import topology_of
from localcluster.nats_server import Account
from tests.integration.activator.known import NONE
from tests.integration.activator.plane import nats_settings


async def test_the_work_of_a_function_that_is_gone_ends_in_turns_with_that_of_others(nats_account: Account) -> None:
    topology, metrics, now = topology_of(nats_settings(nats_account.url)), ActivatorMetrics(), utcnow()
    async with connection(Options((nats_account.url,))) as nats:
        await ensure_until_done(nats, topology.streams, [topology.state], topology.consumers())
        publisher = Publisher(nats)

        def waiting(request_id: str, number: int) -> Outgoing:
            call = Invocation(invocation_id=f"{number}", serverless_request_id=request_id, timeout_seconds=60)
            dispatch = Dispatch(invocation=call, deadline=now.replace(year=2100), dispatched_at=now)
            return Outgoing(topology.subjects.dispatch(request_id), encode(dispatch))

        many = [waiting("many", number) for number in range(2 * AT_ONCE)]
        await publisher.publish_many([*many, waiting("few", 10_000)])
        endings, records = Endings(topology.subjects, publisher, metrics), Bucket(nats, publisher, topology.state)
        reaping = Reaping(gone_seconds=0.001)
        reaper = Reaper(nats, topology, records, NONE, endings, reaping, metrics, utcnow)

        async def left() -> dict[str, int]:
            counts = await messages_by_subject(nats, topology.stream_name(Queue.DISPATCH), ">")
            return {subject.rpartition(".")[2]: count for subject, count in counts.items()}

        await reaper.once()  # from now on they are missing
        while len(await left()) == 2:
            await reaper.once()
        assert await left() == {"many": AT_ONCE}
        while await left():
            await reaper.once()
