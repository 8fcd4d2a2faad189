"""The records of invocations, read and written. Every write is conditional: of two, one wins."""

from dataclasses import dataclass

from gpu_runtime.contract.errors import Unavailable
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, RecordAtRevision, decode_record
from gpu_runtime.contract.messages.message_codec import MessageDecodeError, encode
from gpu_runtime.jetstream.kv import KeyValueBucket, KeyValueEntry


@dataclass(frozen=True)
class InvocationRecordStore:
    bucket: KeyValueBucket

    async def create(self, invocation_id: str, record: InvocationRecord) -> int | None:
        """The revision, or None where there is a record of that ID already."""
        return await self.bucket.create(invocation_id, encode(record))

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        entry = await self.bucket.get(invocation_id)
        return record_from_entry(entry) if entry else None

    async def update(self, invocation_id: str, record: InvocationRecord, revision: int) -> int | None:
        """The new revision, or None where somebody else wrote since."""
        return await self.bucket.update(invocation_id, encode(record), revision)

    async def purge(self, invocation_id: str, revision: int) -> None:
        """Unless somebody else wrote since."""
        await self.bucket.purge(invocation_id, revision)


def record_from_entry(entry: KeyValueEntry) -> RecordAtRevision:
    try:
        return decode_record(entry.value, entry.revision)
    except MessageDecodeError as error:  # not the caller's fault: a newer process wrote it, or somebody by hand
        raise Unavailable(f"the record of invocation {entry.key}: {error}") from error
