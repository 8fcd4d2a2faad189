"""The key-value bucket: optimistic concurrency of create, update and purge, expiry, and watches."""

import asyncio

import pytest

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket, KeyValueEntry
from gpu_runtime.jetstream.publisher import PubAck, Publisher
from gpu_runtime.jetstream.stream_admin import ensure_bucket
from gpu_runtime.jetstream.stream_specs import BucketSpec
from tests.integration.kube.polling import eventually

SPEC = BucketSpec(name="STATE", ttl_seconds=60, republish_to="changes")


@pytest.fixture
async def bucket(nats_connection: NatsConnection, publisher: Publisher) -> KeyValueBucket:
    await ensure_bucket(nats_connection, SPEC)
    return KeyValueBucket(nats_connection, publisher, SPEC)


async def test_one_of_twenty_concurrent_creates_wins(bucket: KeyValueBucket) -> None:
    revisions = await asyncio.gather(*(bucket.create("key", b"%d" % each) for each in range(20)))
    winners = [each for each, revision in enumerate(revisions) if revision is not None]
    assert len(winners) == 1
    assert await bucket.get("key") == KeyValueEntry("key", b"%d" % winners[0], revisions[winners[0]] or 0)


async def test_update_with_an_old_revision_is_rejected(bucket: KeyValueBucket) -> None:
    first = await bucket.create("key", b"1")
    assert first is not None
    second = await bucket.update("key", b"2", first)
    assert second is not None
    assert await bucket.update("key", b"3", first) is None
    assert await bucket.get("key") == KeyValueEntry("key", b"2", second)


async def test_one_of_twenty_concurrent_updates_wins(bucket: KeyValueBucket) -> None:
    first = await bucket.create("key", b"")
    assert first is not None
    revisions = await asyncio.gather(*(bucket.update("key", b"%d" % each, first) for each in range(20)))
    assert len([each for each in revisions if each is not None]) == 1


async def test_purged_key_is_absent_and_one_concurrent_create_wins(bucket: KeyValueBucket) -> None:
    first = await bucket.create("key", b"1")
    assert first is not None
    last = await bucket.update("key", b"2", first)
    assert last is not None
    assert not await bucket.purge("key", first), "the revision is stale"
    assert await bucket.get("key") is not None
    assert await bucket.purge("key", last)
    assert await bucket.get("key") is None
    revisions = await asyncio.gather(*(bucket.create("key", b"%d" % each) for each in range(20)))
    assert len([each for each in revisions if each is not None]) == 1


class DuplicatingPublisher(Publisher):
    """Sends every message twice, as after a lost acknowledgement."""

    async def publish(self, message: OutgoingMessage) -> PubAck:
        await super().publish(message)
        return await super().publish(message)


async def test_resent_write_is_recognized_as_its_own(nats_connection: NatsConnection, bucket: KeyValueBucket) -> None:
    """After a lost acknowledgement, a writer does not report a conflict with its own write."""
    resending = KeyValueBucket(nats_connection, DuplicatingPublisher(nats_connection), SPEC)
    created = await resending.create("key", b"1")
    assert created == 1
    assert await resending.update("key", b"2", created) == 2
    assert await bucket.get("key") == KeyValueEntry("key", b"2", 2)


async def test_key_expires_after_its_ttl(nats_connection: NatsConnection, publisher: Publisher) -> None:
    spec = BucketSpec(name="SHORT", ttl_seconds=0.5)
    await ensure_bucket(nats_connection, spec)
    bucket = KeyValueBucket(nats_connection, publisher, spec)
    await bucket.create("key", b"1")
    async with asyncio.timeout(60):
        while await bucket.get("key") is not None:  # noqa: ASYNC110 - the server sends no event
            await asyncio.sleep(0.05)
    assert await bucket.create("key", b"2") is not None


async def test_watch_returns_existing_and_new_values(bucket: KeyValueBucket) -> None:
    async with bucket.watch("key") as watch:
        assert await anext(watch) is None
        revision = await bucket.create("key", b"1")
        assert revision is not None
        seen = await anext(watch)
        assert seen is not None
        assert seen.value == b"1"
        await bucket.create("other", b"x")
        await bucket.update("key", b"2", revision)
        seen = await anext(watch)
        assert seen is not None
        assert seen.value == b"2"
        await bucket.purge("key", seen.revision)
        assert await anext(watch) is None


async def test_watch_always_reaches_the_last_value(bucket: KeyValueBucket) -> None:
    values: list[bytes] = []

    async def follow() -> None:
        async with bucket.watch("key") as watch:
            async for entry in watch:
                values.append(entry.value if entry else b"")  # noqa: PERF401 - the test reads the list during the iteration

    following = asyncio.create_task(follow())
    revision = await bucket.create("key", b"0")
    for number in range(1, 100):
        assert revision is not None
        revision = await bucket.update("key", b"%d" % number, revision)
    await eventually(lambda: values[-1:] == [b"99"], "the watch sees the last value")
    following.cancel()
    await asyncio.wait({following})
