"""Work that was acknowledged and still lies in its queue, as a NATS server may leave it that is killed with its disk
full. Here the stream keeps what is acknowledged."""

from dataclasses import replace
from datetime import timedelta

from nats.aio.client import Client as Nats

from gpu_runtime.activator.invocation_reaper import LEFT_EVERY, Reaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Reaping
from gpu_runtime.activator.terminal_results import Endings
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Stage
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_consumer, ensure_until_done
from gpu_runtime.jetstream.stream_messages import kept
from gpu_runtime.jetstream.stream_specs import ConsumerSpec
from gpu_runtime.process.nats_setup import topology_of
from localcluster.nats_server import Account
from tests.integration.activator.known import ONE
from tests.integration.activator.plane import nats_settings


async def test_what_was_done_and_is_still_there_counts_no_more(nats_account: Account) -> None:
    topology, metrics = topology_of(nats_settings(nats_account.url)), ActivatorMetrics()
    now = [utcnow()]
    keeping = [replace(each, retention="limits") for each in topology.streams]
    async with connection(Options((nats_account.url,))) as nats:
        await ensure_until_done(nats, keeping, [topology.state], topology.consumers())
        publisher, stream, work = Publisher(nats), topology.stream_name(Queue.DISPATCH), topology.work("f")
        records, endings = Bucket(nats, publisher, topology.state), Endings(topology.subjects, publisher, metrics)
        reaper = Reaper(nats, topology, records, ONE, endings, Reaping(), metrics, lambda: now[0])
        for id_, stage in (("done", Stage.TERMINAL), ("odd", Stage.RUNNING), ("waits", Stage.TERMINAL)):
            await records.create(id_, encode(record(stage)))
        for id_ in ("done", "odd", "waits"):
            await publisher.publish(waiting(topology.subjects.dispatch("f"), id_))
        await publisher.publish(Outgoing(topology.subjects.dispatch("f"), b"nobody can read it"))

        async def left() -> list[int]:
            return [each.sequence async for each in kept(nats, stream, topology.subjects.dispatch("f"))]

        await reaper.once()
        assert await left() == [1, 2, 3, 4], "nobody has taken any yet"
        await ensure_consumer(nats, work)
        await acknowledge(nats_account, work, 2)
        await reaper.once()
        assert await left() == [1, 2, 3, 4], "it has looked just now"
        now[0] += LEFT_EVERY
        await reaper.once()
        assert await left() == [2, 3, 4], "what is not acknowledged, or has not ended, stays"
        await acknowledge(nats_account, work, 2)
        now[0] += LEFT_EVERY
        await reaper.once()
        assert await left() == [2], "what nobody can read was given up when it was acknowledged"


def record(stage: Stage) -> InvocationRecord:
    ended, now = ResultState.SUCCEEDED if stage is Stage.TERMINAL else None, utcnow()
    return InvocationRecord(
        request_hash="",
        serverless_request_id="f",
        stage=stage,
        enqueued_at=now,
        deadline=now,
        updated_at=now,
        result_state=ended,
    )


def waiting(subject: str, id_: str) -> Outgoing:
    call = Invocation(invocation_id=id_, serverless_request_id="f", timeout_seconds=60)
    deadline = utcnow() + timedelta(hours=1)
    return Outgoing(subject, encode(Dispatch(invocation=call, deadline=deadline, dispatched_at=utcnow())))


async def acknowledge(account: Account, consumer: ConsumerSpec, count: int) -> None:
    """Take the next ones, and acknowledge them so that the server confirms it."""
    client = Nats()
    await client.connect(account.url)
    taken = await client.jetstream().pull_subscribe_bind(consumer.name, stream=consumer.stream)
    for message in await taken.fetch(count, timeout=60):
        await message.ack_sync(timeout=60)
    await client.close()
