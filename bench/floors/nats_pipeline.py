"""The floor of an invocation: the same hops through NATS with nats-py and nothing between.

    python -m bench.floors.nats_pipeline URL HOP

Three queues on file and a key-value bucket, as the platform has them. The caller creates a key and publishes; each hop
takes a message, writes the key, publishes to the next queue, and acknowledges; the last one writes the key and
acknowledges. No HTTP, no function, no database, no fence, no retry, no message that anybody could read.
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
        stream = client.jetstream()
        made = PipelineCaller(client, stream, await stream.key_value(BUCKET_NAME))
        await client.subscribe(f"{made.inbox}.*", cb=made.on_reply)
        yield made
    finally:
        await client.close()


@contextmanager
def start_hops(url: str, queues: Sequence[str] = HOPS) -> Iterator[None]:
    """A process for each of the hops behind the caller."""
    running = [
        Popen([sys.executable, "-m", "bench.floors.nats_pipeline", url, queue], cwd=PROJECT_ROOT) for queue in queues
    ]
    try:
        yield
    finally:
        for process in running:
            process.terminate()
            process.wait(10)


async def wait_until_empty(url: str) -> float:
    """When nothing was left in any of the queues, on the monotonic clock."""
    client = await nats.connect(url)
    try:
        while True:
            infos = [await client.jetstream().stream_info(f"FLOOR_{queue}") for queue in HOPS]
            if not any(info.state.messages for info in infos):
                return time.monotonic()
            await asyncio.sleep(0.02)
    finally:
        await client.close()


async def measure_consume_rate(url: str, queue: str, count: int, body: bytes) -> float:
    """How many messages per second the hop behind a queue takes out of it, where so many wait."""
    client = await nats.connect(url)
    stream = client.jetstream()

    async def left() -> int:
        return (await stream.stream_info(f"FLOOR_{queue}")).state.messages

    try:
        send = partial(stream.publish, f"floor.{queue}.one", body)
        await for_each_concurrently(256, range(count), lambda number: send(headers={ID_HEADER: f"{queue}-{number}"}))
        with start_hops(url, [queue]):
            while (first := await left()) == count:  # noqa: ASYNC110 - no queue tells how long it is
                await asyncio.sleep(0.02)
            began = time.monotonic()
            while await left():  # noqa: ASYNC110
                await asyncio.sleep(0.02)
            return first / (time.monotonic() - began)
    finally:
        await client.close()


async def create_streams(url: str) -> None:
    client = await nats.connect(url)
    stream = client.jetstream()
    for queue in HOPS:
        wanted = StreamConfig(
            name=f"FLOOR_{queue}", subjects=[f"floor.{queue}.*"], retention=RetentionPolicy.WORK_QUEUE
        )
        await stream.add_stream(wanted)
    await stream.create_key_value(KeyValueConfig(bucket=BUCKET_NAME))
    await client.close()


async def run_hop(url: str, queue: str) -> None:
    client = await nats.connect(url)
    stream = client.jetstream()
    bucket = await stream.key_value(BUCKET_NAME)
    pulled = await stream.pull_subscribe(f"floor.{queue}.*", durable=queue)
    following = dict(pairwise(HOPS)).get(queue)

    async def handle(message: Msg) -> None:
        headers = message.headers or {}
        await bucket.put(headers[ID_HEADER], queue.encode())
        if following:
            await stream.publish(f"floor.{following}.one", message.data, headers=headers)
        if queue == "dispatch" and REPLY_HEADER in headers:
            await client.publish(headers[REPLY_HEADER], message.data)
        await message.ack()

    while True:
        with suppress(TimeoutError):
            await asyncio.gather(*(handle(message) for message in await pulled.fetch(FETCH_BATCH_SIZE, timeout=5)))


if __name__ == "__main__":
    asyncio.run(run_hop(*sys.argv[1:]))
