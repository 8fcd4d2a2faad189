"""Queues that were lost and made anew, with the numbers of their messages beginning at one again."""

from datetime import datetime, timedelta

from gpu_runtime.activator.invocation_reaper import Reaper
from gpu_runtime.activator.main import utcnow
from gpu_runtime.activator.metrics import ActivatorMetrics
from gpu_runtime.activator.settings import Reaping
from gpu_runtime.activator.terminal_results import Endings
from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.message_codec import decode, encode
from gpu_runtime.contract.messages.subjects import Queue
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.stream_admin import ensure_until_done
from gpu_runtime.jetstream.stream_messages import kept
from gpu_runtime.process.nats_setup import topology_of
from localcluster.nats_server import Account
from tests.integration.activator.known import ONE
from tests.integration.activator.plane import nats_settings


async def test_what_waits_in_a_queue_that_was_made_anew_ends_at_its_own_time(nats_account: Account) -> None:
    topology, metrics, begin = topology_of(nats_settings(nats_account.url)), ActivatorMetrics(), utcnow()
    now = [begin]
    async with connection(Options((nats_account.url,))) as nats:
        publisher, stream = Publisher(nats), topology.stream_name(Queue.DISPATCH)
        records, endings = Bucket(nats, publisher, topology.state), Endings(topology.subjects, publisher, metrics)
        reaper = Reaper(nats, topology, records, ONE, endings, Reaping(), metrics, lambda: now[0])

        async def wait(id_: str, until: datetime) -> None:
            asked = Invocation(invocation_id=id_, serverless_request_id="f", timeout_seconds=60)
            dispatch = Dispatch(invocation=asked, deadline=until, dispatched_at=begin)
            await publisher.publish(Outgoing(topology.subjects.dispatch("f"), encode(dispatch)))

        async def left() -> list[str]:
            found = kept(nats, stream, topology.subjects.dispatch("f"))
            return [decode(each.data, Dispatch).invocation.invocation_id async for each in found]

        await ensure_until_done(nats, topology.streams, [topology.state], topology.consumers())
        for id_ in ("a", "b", "c"):
            await wait(id_, begin + timedelta(minutes=1))
        now[0] = begin + timedelta(seconds=30)
        await reaper.once()
        await call(nats, f"STREAM.DELETE.{stream}")
        await ensure_until_done(nats, topology.streams)
        await wait("long", begin + timedelta(hours=1))
        await wait("short", begin + timedelta(minutes=2))
        now[0] = begin + timedelta(minutes=1.5)
        await reaper.once()
        assert await left() == ["long", "short"], "those that had their numbers are over, and they are not"
        now[0] = begin + timedelta(minutes=3)
        await reaper.once()
        assert await left() == ["long"]
