"""Sets invocation records to a terminal state.

A record becomes terminal only after the result is stored. So a reader of a terminal record always finds the result.
"""

from dataclasses import dataclass

from gpu_runtime.contract.messages.invocation_record import RecordAtRevision, decode_record, finish_record
from gpu_runtime.contract.messages.message_codec import encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.jetstream.errors import WrongLastSequence
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.result_store.message_clock import now

MAX_WRITE_ATTEMPTS = 5
"""Maximum number of attempts to update a record. An invocation has few writers, and each writes once."""


@dataclass(frozen=True)
class RecordFinisher:
    bucket: KeyValueBucket

    async def finish(self, invocation_id: str, state: ResultState, stored: RecordAtRevision | None) -> None:
        """Set the record to the terminal state of this result.

        Do nothing if the record is already terminal or has expired. `stored` is the record as the sender of the result
        knew it. If `stored` is None or stale, this method reads the current record.
        """
        for _ in range(MAX_WRITE_ATTEMPTS):
            stored = stored or await self._read(invocation_id)
            if stored is None:
                return
            record = finish_record(stored.record, state, now())
            if record is stored.record:
                return
            if await self.bucket.update(invocation_id, encode(record), stored.revision) is not None:
                return
            stored = None
        raise WrongLastSequence(
            f"the record of invocation {invocation_id} changed during each of {MAX_WRITE_ATTEMPTS} update attempts"
        )

    async def _read(self, invocation_id: str) -> RecordAtRevision | None:
        entry = await self.bucket.get(invocation_id)
        return decode_record(entry.value, entry.revision) if entry else None
