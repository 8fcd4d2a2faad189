"""A key-value bucket with optimistic concurrency: every write contains the revision that it expects.

The stream leader answers reads, so a read sees every acknowledged write. If the acknowledgement of a write is lost, the
publisher sends the write again. The server rejects the second write, because it stored the first one. Each write has a
write ID (its message ID). With it, the writer recognizes its own value and does not report a conflict with itself.
"""

import asyncio
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass

from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import WrongLastSequence
from gpu_runtime.jetstream.publisher import EXPECTED_LAST_SEQUENCE_HEADER, MESSAGE_ID_HEADER, Publisher
from gpu_runtime.jetstream.stream_messages import StoredMessage, last_message
from gpu_runtime.jetstream.stream_specs import BucketSpec

OPERATION_HEADER = "KV-Operation"
PURGE_HEADERS: Mapping[str, str] = {OPERATION_HEADER: "PURGE", "Nats-Rollup": "sub", "Nats-TTL": "1s"}
"""A purge leaves a marker. The server deletes the marker soon, so that purges do not fill the bucket."""


@dataclass(frozen=True)
class KeyValueEntry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True)
class KeyValueBucket:
    connection: NatsConnection
    publisher: Publisher
    spec: BucketSpec

    async def get(self, key: str) -> KeyValueEntry | None:
        return _entry(key, await self.last_write(key))

    async def create(self, key: str, value: bytes) -> int | None:
        """Create a key and return its revision. Return None if the key already has a value."""
        write_id = _new_write_id()
        new_revision, last = await self._write(key, value, 0, write_id)
        if new_revision is None and last is not None and _entry(key, last) is None:
            new_revision, _ = await self._write(key, value, last.sequence, write_id)
        return new_revision

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Replace the value that has this revision, and return the new revision. Return None if `revision` is stale."""
        new_revision, _ = await self._write(key, value, revision, _new_write_id())
        return new_revision

    async def purge(self, key: str, revision: int) -> bool:
        """Delete a key if its value has this revision. Return False if `revision` is stale."""
        condition = {EXPECTED_LAST_SEQUENCE_HEADER: str(revision)}
        try:
            await self.publisher.publish(
                OutgoingMessage(self.spec.subject(key), b"", _new_write_id(), {**PURGE_HEADERS, **condition})
            )
        except WrongLastSequence:
            return False
        return True

    @asynccontextmanager
    async def watch(self, key: str) -> AsyncIterator["KeyWatch"]:
        """Watch a key: the iterator yields the current value, then the last value after each change."""
        watch, subject = KeyWatch(self, key), f"{self.spec.republish_to}.{key}"
        # The server does not repeat changes that it republished while the connection was lost, so a reconnect counts as
        # a change.
        remove_listener = self.connection.add_listener(lambda connected: watch.notify() if connected else None)
        try:
            async with self.connection.subscribed(subject, lambda _message: watch.notify()):
                yield watch
        finally:
            remove_listener()

    async def _write(
        self, key: str, value: bytes, revision: int, write_id: str
    ) -> tuple[int | None, StoredMessage | None]:
        """Return the new revision. If another write was first, return None and the last message."""
        condition = {EXPECTED_LAST_SEQUENCE_HEADER: str(revision)}
        try:
            message = OutgoingMessage(self.spec.subject(key), value, write_id, condition)
            return (await self.publisher.publish(message)).seq, None
        except WrongLastSequence:
            last = await self.last_write(key)
        own = last is not None and last.headers.get(MESSAGE_ID_HEADER) == write_id
        return (last.sequence, None) if last and own else (None, last)

    async def last_write(self, key: str) -> StoredMessage | None:
        """Return the last message about a key: its value, or the marker of a purge."""
        return await last_message(self.connection, self.spec.stream_name, self.spec.subject(key))


class KeyWatch:
    """Iterates over the values of a key: the current value first, then the last value after each change.

    Changes in quick succession are merged into one. A watch does not report that a value has expired.
    """

    def __init__(self, bucket: KeyValueBucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._changed = asyncio.Event()
        self._changed.set()
        self._last_revision: int | None = None

    def notify(self) -> None:
        self._changed.set()

    def __aiter__(self) -> "KeyWatch":
        return self

    async def __anext__(self) -> KeyValueEntry | None:
        """Wait for a change and return the last entry, or None if the key has no value."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            last = await self._bucket.last_write(self._key)
            revision = last.sequence if last else 0
            if revision != self._last_revision:
                self._last_revision = revision
                return _entry(self._key, last)


def _entry(key: str, last: StoredMessage | None) -> KeyValueEntry | None:
    """Return the value of a key. A purged key has none: its last message is only a marker."""
    if last is None or OPERATION_HEADER in last.headers:
        return None
    return KeyValueEntry(key, last.data, last.sequence)


def _new_write_id() -> str:
    return secrets.token_hex(12)
