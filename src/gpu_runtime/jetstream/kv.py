"""Values by key in a bucket: created by one, changed by whoever saw the last revision, watched by anybody.

Reads are answered by the stream's leader and see every acknowledged write. A write whose acknowledgement was lost is
sent again and then refused, because it is there: the value bears its writer's mark, so nobody loses against himself.
"""

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.errors import NatsNotFound, WrongLastSequence
from gpu_runtime.jetstream.publisher import EXPECTED_LAST_SEQUENCE_HEADER, MESSAGE_ID_HEADER, Publisher
from gpu_runtime.jetstream.stream_messages import decode_headers
from gpu_runtime.jetstream.stream_specs import BucketSpec

OPERATION_HEADER = "KV-Operation"
PURGE_HEADERS: Mapping[str, str] = {OPERATION_HEADER: "PURGE", "Nats-Rollup": "sub"}


@dataclass(frozen=True)
class KeyValueEntry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True)
class _LastEntry:
    revision: int
    entry: KeyValueEntry | None
    """None where the key was purged, and only a sign of that is left."""
    write_id: str
    """The writer's own."""


@dataclass(frozen=True)
class KeyValueBucket:
    connection: NatsConnection
    publisher: Publisher
    spec: BucketSpec

    async def get(self, key: str) -> KeyValueEntry | None:
        found = await self._get_last(key)
        return found.entry if found else None

    async def create(self, key: str, value: bytes) -> int | None:
        """Write the first value of a key and give its revision. None where it has one: somebody else was first."""
        mark = _new_write_id()
        written, found = await self._write(key, value, 0, mark)
        if written is None and found is not None and found.entry is None:
            written, _ = await self._write(key, value, found.revision, mark)
        return written

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Replace the value of that revision and give the new one. None where it is no longer the last."""
        written, _ = await self._write(key, value, revision, _new_write_id())
        return written

    async def purge(self, key: str, revision: int) -> bool:
        """Forget a key whose last value is that of the revision. False where it is no longer."""
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
        """See the last value of a key, now and whenever it changes."""
        watch = KeyWatch(self, key)
        subscription = await self.connection.subscribe(
            f"{self.spec.republish_to}.{key}", lambda _message: watch.notify()
        )
        unlisten = self.connection.add_listener(lambda there: watch.notify() if there else None)
        try:
            yield watch
        finally:
            unlisten()
            await self.connection.unsubscribe(subscription)

    async def _write(self, key: str, value: bytes, revision: int, mark: str) -> tuple[int | None, _LastEntry | None]:
        """The new revision, or None and what stands in the way."""
        message = OutgoingMessage(self.spec.subject(key), value, mark, {EXPECTED_LAST_SEQUENCE_HEADER: str(revision)})
        try:
            return (await self.publisher.publish(message)).seq, None
        except WrongLastSequence:
            found = await self._get_last(key)
        return (found.revision, None) if found and found.write_id == mark else (None, found)

    async def _get_last(self, key: str) -> _LastEntry | None:
        try:
            answer = await api_request(
                self.connection, f"STREAM.MSG.GET.{self.spec.stream_name}", {"last_by_subj": self.spec.subject(key)}
            )
        except NatsNotFound as error:
            if error.err_code == 10037:
                return None
            raise
        return _last_entry(key, answer["message"])


class KeyWatch:
    """Gives the value of a key, then each later one. What changes quickly is seen as it last was.

    What disappears because its time is over is not told.
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
        """The next value; None while there is none."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            found = await self._bucket._get_last(self._key)
            revision = found.revision if found else 0
            if revision != self._last_revision:
                self._last_revision = revision
                return found.entry if found else None


def _last_entry(key: str, message: Mapping[str, Any]) -> _LastEntry:
    revision: int = message["seq"]
    headers = decode_headers(message)
    value = base64.b64decode(message.get("data", ""))
    entry = None if OPERATION_HEADER in headers else KeyValueEntry(key, value, revision)
    return _LastEntry(revision, entry, headers.get(MESSAGE_ID_HEADER, ""))


def _new_write_id() -> str:
    return secrets.token_hex(12)
