"""Reads and writes invocation records. Every write is conditional, so that only one of several writers succeeds."""

from dataclasses import dataclass

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, decode_record
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, encode
from gpu_runtime.jetstream.kv import KeyValueBucket, KeyValueEntry


@dataclass(frozen=True)
class InvocationRecordStore:
    bucket: KeyValueBucket

    async def create(self, invocation_id: str, record: InvocationRecord) -> int | None:
        """Create the record and return its revision, or None if a record with this ID exists."""
        return await self.bucket.create(invocation_id, encode(record))

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        entry = await self.bucket.get(invocation_id)
        return record_from_entry(entry) if entry else None

    async def update(self, invocation_id: str, record: InvocationRecord, revision: int) -> int | None:
        """Write the record and return its new revision, or None if another process has changed the record."""
        return await self.bucket.update(invocation_id, encode(record), revision)

    async def purge(self, invocation_id: str, revision: int) -> None:
        """Delete the record, unless another process has changed it."""
        await self.bucket.purge(invocation_id, revision)


def record_from_entry(entry: KeyValueEntry) -> RecordAtRevision:
    try:
        return decode_record(entry.value, entry.revision)
    except (
        MessageDecodeError
    ) as error:  # not an error of the caller: a newer version or an administrator wrote the record
        raise Unavailable(f"the record of invocation {entry.key} is malformed: {error}") from error
