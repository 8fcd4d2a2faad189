"""The end of an invocation's record: written after its result is stored, so whoever sees it finds the result."""

from dataclasses import dataclass

from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, decode_record, finish_record
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.errors import WrongLastSequence
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.result_store.message_clock import now

MAX_WRITE_ATTEMPTS = 5
"""An invocation has a handful of writers, and each writes once."""


@dataclass(frozen=True)
class RecordFinisher:
    bucket: KeyValueBucket

    async def finish(self, invocation_id: str, state: ResultState, known: RecordAtRevision | None) -> None:
        """Write that it ended so. Nothing is to be done for a record that has ended, or whose time is over."""
        for _ in range(MAX_WRITE_ATTEMPTS):
            known = known or await self._read(invocation_id)
            if known is None:
                return
            record = finish_record(known.record, state, now())
            if record is known.record:
                return
            if await self.bucket.update(invocation_id, encode(record), known.revision) is not None:
                return
            known = None
        raise WrongLastSequence(
            f"the record of {invocation_id} was changed {MAX_WRITE_ATTEMPTS} times while it was to be ended"
        )

    async def _read(self, invocation_id: str) -> RecordAtRevision | None:
        entry = await self.bucket.get(invocation_id)
        return decode_record(entry.value, entry.revision) if entry else None
