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

from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.errors import NotFound, Outrun
from gpu_runtime.jetstream.publisher import EXPECTED_REVISION, MESSAGE_ID, Publisher
from gpu_runtime.jetstream.stream_messages import headers_of
from gpu_runtime.jetstream.stream_specs import BucketSpec

OPERATION = "KV-Operation"
PURGE: Mapping[str, str] = {OPERATION: "PURGE", "Nats-Rollup": "sub"}


@dataclass(frozen=True)
class Entry:
    key: str
    value: bytes
    revision: int


@dataclass(frozen=True)
class _Found:
    revision: int
    entry: Entry | None
    """None where the key was purged, and only a sign of that is left."""
    mark: str
    """The writer's own."""


@dataclass(frozen=True)
class Bucket:
    connection: Connection
    publisher: Publisher
    spec: BucketSpec

    async def get(self, key: str) -> Entry | None:
        found = await self._last(key)
        return found.entry if found else None

    async def create(self, key: str, value: bytes) -> int | None:
        """Write the first value of a key and give its revision. None where it has one: somebody else was first."""
        mark = _mark()
        written, found = await self._write(key, value, 0, mark)
        if written is None and found is not None and found.entry is None:
            written, _ = await self._write(key, value, found.revision, mark)
        return written

    async def update(self, key: str, value: bytes, revision: int) -> int | None:
        """Replace the value of that revision and give the new one. None where it is no longer the last."""
        written, _ = await self._write(key, value, revision, _mark())
        return written

    async def purge(self, key: str, revision: int) -> bool:
        """Forget a key whose last value is that of the revision. False where it is no longer."""
        condition = {EXPECTED_REVISION: str(revision)}
        try:
            await self.publisher.publish(Outgoing(self.spec.subject(key), b"", _mark(), {**PURGE, **condition}))
        except Outrun:
            return False
        return True

    @asynccontextmanager
    async def watch(self, key: str) -> AsyncIterator["Watch"]:
        """See the last value of a key, now and whenever it changes."""
        watch = Watch(self, key)
        subscription = await self.connection.subscribe(f"{self.spec.told_on}.{key}", lambda _message: watch.look())
        unlisten = self.connection.listen(lambda there: watch.look() if there else None)
        try:
            yield watch
        finally:
            unlisten()
            await self.connection.unsubscribe(subscription)

    async def _write(self, key: str, value: bytes, revision: int, mark: str) -> tuple[int | None, _Found | None]:
        """The new revision, or None and what stands in the way."""
        message = Outgoing(self.spec.subject(key), value, mark, {EXPECTED_REVISION: str(revision)})
        try:
            return (await self.publisher.publish(message)).seq, None
        except Outrun:
            found = await self._last(key)
        return (found.revision, None) if found and found.mark == mark else (None, found)

    async def _last(self, key: str) -> _Found | None:
        try:
            answer = await call(
                self.connection, f"STREAM.MSG.GET.{self.spec.stream}", {"last_by_subj": self.spec.subject(key)}
            )
        except NotFound as error:
            if error.kind == 10037:
                return None
            raise
        return _found(key, answer["message"])


class Watch:
    """Gives the value of a key, then each later one. What changes quickly is seen as it last was.

    What disappears because its time is over is not told.
    """

    def __init__(self, bucket: Bucket, key: str) -> None:
        self._bucket, self._key = bucket, key
        self._changed = asyncio.Event()
        self._changed.set()
        self._seen: int | None = None

    def look(self) -> None:
        self._changed.set()

    def __aiter__(self) -> "Watch":
        return self

    async def __anext__(self) -> Entry | None:
        """The next value; None while there is none."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            found = await self._bucket._last(self._key)
            revision = found.revision if found else 0
            if revision != self._seen:
                self._seen = revision
                return found.entry if found else None


def _found(key: str, message: Mapping[str, Any]) -> _Found:
    revision: int = message["seq"]
    headers = headers_of(message)
    value = base64.b64decode(message.get("data", ""))
    entry = None if OPERATION in headers else Entry(key, value, revision)
    return _Found(revision, entry, headers.get(MESSAGE_ID, ""))


def _mark() -> str:
    return secrets.token_hex(12)
