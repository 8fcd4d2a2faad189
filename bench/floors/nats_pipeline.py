"""The floor of an invocation: the same hops through NATS, with plain nats-py.

    python -m bench.floors.nats_pipeline URL HOP

There are three streams with file storage and a key-value bucket, as in the platform. The caller writes a key and
publishes a message. Each hop pulls a message, writes the key, publishes to the next stream, and acks. The last hop
writes the key and acks. There is no HTTP, no function, no database, no optimistic concurrency, no retry, and no message
decoding.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise
from subprocess import Popen
from uuid import uuid4

import nats
from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.js import JetStreamContext
from nats.js.api import KeyValueConfig, RetentionPolicy, StreamConfig
from nats.js.kv import KeyValue

from bench.kube_api import for_each_concurrently
from localcluster.paths import PROJECT_ROOT

HOPS = ("invoke", "dispatch", "result")
BUCKET_NAME = "floor"
FETCH_BATCH_SIZE = 64
REPLY_HEADER, ID_HEADER = "Floor-Reply", "Floor-Id"


@dataclass
class PipelineCaller:
    client: Client
    jetstream: JetStreamContext
    bucket: KeyValue
    inbox: str = field(default_factory=lambda: f"_INBOX.{uuid4().hex}")
    pending_replies: "dict[str, asyncio.Future[None]]" = field(default_factory=dict)

    async def send(self, key: str, body: bytes, *, wait: bool) -> None:
        headers = {ID_HEADER: key}
        if wait:
            headers[REPLY_HEADER] = f"{self.inbox}.{key}"
            self.pending_replies[key] = asyncio.get_running_loop().create_future()
        await self.bucket.put(key, b"queued")
        await self.jetstream.publish("floor.invoke.one", body, headers=headers)
        if wait:
            await self.pending_replies[key]

    async def on_reply(self, message: Msg) -> None:
        self.pending_replies[message.subject.rpartition(".")[2]].set_result(None)


@asynccontextmanager
async def pipeline_caller(url: str) -> AsyncIterator[PipelineCaller]:
    client = await nats.connect(url)
    try:
        jetstream = client.jetstream()
        caller = PipelineCaller(client, jetstream, await jetstream.key_value(BUCKET_NAME))
        await client.subscribe(f"{caller.inbox}.*", cb=caller.on_reply)
        yield caller
    finally:
        await client.close()


@contextmanager
def start_hops(url: str, hops: Sequence[str] = HOPS) -> Iterator[None]:
    """Start a process for each hop."""
    processes = [
        Popen([sys.executable, "-m", "bench.floors.nats_pipeline", url, hop], cwd=PROJECT_ROOT) for hop in hops
    ]
    try:
        yield
    finally:
        for process in processes:
            process.terminate()
            process.wait(10)


async def wait_until_empty(url: str) -> float:
    """Wait until all streams are empty, and return that time of the monotonic clock."""
    client = await nats.connect(url)
    try:
        while True:
            infos = [await client.jetstream().stream_info(f"FLOOR_{hop}") for hop in HOPS]
            if not any(info.state.messages for info in infos):
                return time.monotonic()
            await asyncio.sleep(0.02)
    finally:
        await client.close()


async def measure_consume_rate(url: str, hop: str, count: int, body: bytes) -> float:
    """Return the messages per second that a hop consumes from a stream with this number of messages."""
    client = await nats.connect(url)
    jetstream = client.jetstream()

    async def remaining() -> int:
        return (await jetstream.stream_info(f"FLOOR_{hop}")).state.messages

    try:
        send = partial(jetstream.publish, f"floor.{hop}.one", body)
        await for_each_concurrently(256, range(count), lambda number: send(headers={ID_HEADER: f"{hop}-{number}"}))
        with start_hops(url, [hop]):
            while (first_remaining := await remaining()) == count:  # noqa: ASYNC110 - JetStream has no notification of the stream length
                await asyncio.sleep(0.02)
            started_at = time.monotonic()
            while await remaining():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return first_remaining / (time.monotonic() - started_at)
    finally:
        await client.close()


async def create_streams(url: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    for hop in HOPS:
        stream_config = StreamConfig(
            name=f"FLOOR_{hop}", subjects=[f"floor.{hop}.*"], retention=RetentionPolicy.WORK_QUEUE
        )
        await jetstream.add_stream(stream_config)
    await jetstream.create_key_value(KeyValueConfig(bucket=BUCKET_NAME))
    await client.close()


async def run_hop(url: str, hop: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    bucket = await jetstream.key_value(BUCKET_NAME)
    subscription = await jetstream.pull_subscribe(f"floor.{hop}.*", durable=hop)
    next_hop = dict(pairwise(HOPS)).get(hop)

    async def handle(message: Msg) -> None:
        headers = message.headers or {}
        await bucket.put(headers[ID_HEADER], hop.encode())
        if next_hop:
            await jetstream.publish(f"floor.{next_hop}.one", message.data, headers=headers)
        if hop == "dispatch" and REPLY_HEADER in headers:
            await client.publish(headers[REPLY_HEADER], message.data)
        await message.ack()

    while True:
        with suppress(TimeoutError):
            await asyncio.gather(
                *(handle(message) for message in await subscription.fetch(FETCH_BATCH_SIZE, timeout=5))
            )


if __name__ == "__main__":
    asyncio.run(run_hop(*sys.argv[1:]))
