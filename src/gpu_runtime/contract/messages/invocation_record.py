"""The record of an invocation in the key-value bucket, and every change of it. Nothing here awaits.

A replica of the API accepts an invocation by creating its record. If several replicas try, exactly one succeeds. This
does not depend on the deduplication of JetStream, which forgets message IDs when the server restarts.

`step` decides every change; docs/reference/invocation-record.md shows it as a table. Two rules protect an invocation:

- A process other than the worker first writes a `termination` to the record, and then publishes the result. The write
  is conditional, and a worker starts no invocation that has a termination. So they cannot both end it.
- `termination_to_publish` alone says whether a process may publish the result of a termination. A running invocation
  belongs to its worker until its deadline and a grace period have passed.

Every message about an invocation has the record and its revision in its headers. So each change needs one conditional
write and no read. If the write conflicts, the process reads the record and decides again.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import Enum, StrEnum, auto
from typing import Annotated, TypeAlias

import msgspec
from msgspec import Meta, field

from gpu_runtime.contract.messages.limits import is_stream_sequence
from gpu_runtime.contract.messages.message_codec import (
    Instant,
    Message,
    MessageDecodeError,
    decode,
    encode,
    to_utc_milliseconds,
)
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.contract.timing import TAKEOVER_GRACE_SECONDS

REVISION_HEADER = "Gpu-Runtime-Revision"
"""The header with the revision of the record. If it is absent or stale, the consumer reads the record."""
RECORD_HEADER = "Gpu-Runtime-Record"
"""The header with the record at the revision in REVISION_HEADER."""

WORKER_GRACE = timedelta(seconds=TAKEOVER_GRACE_SECONDS)
"""Time after the deadline in which a worker with a redelivery leaves the invocation to the worker that runs it."""
NO_TAKEOVER = timedelta.max
"""The grace period of a process that never ends a running invocation."""
HOLDS_DELIVERY = timedelta.min
"""The grace period of a worker that holds the delivery of the invocation: another worker has lost the delivery."""


class RecordState(StrEnum):
    QUEUED = "queued"
    """The API accepted the invocation. If a worker has free capacity, the dispatch does not change the state. Then the
    record stays in this state until a worker starts the invocation."""
    DISPATCHED = "dispatched"
    """The invocation waits for a worker."""
    RUNNING = "running"
    """A worker runs the invocation."""
    TERMINAL = "terminal"
    """The result is stored. The record does not change any more."""


class Termination(StrEnum):
    """How the platform ends an invocation without an outcome of a worker."""

    CANCELLED = "cancelled"
    EXPIRED = "expired"
    FUNCTION_GONE = "function_gone"
    DEAD_LETTERED = "dead_lettered"


class InvocationRecord(Message, frozen=True, kw_only=True):
    request_hash: str
    """The hash of the request. A request with the same ID and another hash is rejected."""

    serverless_request_id: str = field(name="serverlessRequestID")
    function_id: str = field(name="functionID")
    """The function whose queue has the message of the invocation."""

    state: RecordState = field(default=RecordState.QUEUED, name="state")
    enqueued_at: Instant
    deadline: Instant
    updated_at: Instant

    termination: Termination | None = None
    """How a process other than the worker ends the invocation. The first termination counts. No worker starts an
    invocation that has one. A worker that already runs the invocation may still finish it with its own result."""

    worker: str = ""
    """The name of the unit that runs the invocation or ran it last."""

    attempts: Annotated[int, Meta(ge=0)] = 0
    """How many times a worker started the invocation."""

    reply_to: str = ""
    """The subject on which an API replica waits for the result. Empty if no caller waits."""

    result_state: ResultState | None = None
    """The state of the result. None until the record is terminal."""

    @property
    def finished(self) -> bool:
        return self.state is RecordState.TERMINAL

    @property
    def running(self) -> bool:
        return self.state is RecordState.RUNNING

    @property
    def cancel_requested(self) -> bool:
        return self.termination is Termination.CANCELLED and not self.finished


@dataclass(frozen=True)
class Dispatched:  # the activator is about to publish the dispatch
    at: datetime


@dataclass(frozen=True)
class Started:  # a worker is about to run the invocation
    at: datetime
    worker: str


@dataclass(frozen=True)
class CancelRequested:
    at: datetime


@dataclass(frozen=True)
class DeadlinePassed:
    at: datetime
    worker_grace: timedelta
    """Time after the deadline in which only the worker ends a running invocation."""


@dataclass(frozen=True)
class Abandoned:  # the activator will not run the invocation: its function is deleted, or it is dead-lettered
    at: datetime
    termination: Termination


@dataclass(frozen=True)
class ResultStored:
    at: datetime
    state: ResultState


RecordEvent: TypeAlias = Dispatched | Started | CancelRequested | DeadlinePassed | Abandoned | ResultStored


class Refusal(Enum):
    """Why an event does not change the record."""

    FINISHED = auto()
    """The result is stored."""
    TERMINATING = auto()
    """The record already has a termination."""
    RUNNING = auto()
    """A worker runs the invocation. Another process can cancel the invocation at any time, but can end it as `expired`
    only after the grace period."""
    TOO_EARLY = auto()
    """The deadline has not passed."""


def step(record: InvocationRecord, event: RecordEvent) -> InvocationRecord | Refusal:
    """Return the record after the event, or why the event is refused. Return the same record if nothing changes."""
    running, terminating = record.running, record.termination is not None
    after: InvocationRecord | Refusal
    match event:
        case _ if record.finished:
            after = Refusal.FINISHED
        case ResultStored(at, state):
            after = _changed(record, at, state=RecordState.TERMINAL, result_state=state)
        case CancelRequested(at):
            after = record if terminating else _changed(record, at, termination=Termination.CANCELLED)
        case _ if terminating:
            after = Refusal.TERMINATING
        case Dispatched() if record.state is RecordState.DISPATCHED:
            after = record
        case Dispatched(at):
            after = Refusal.RUNNING if running else _changed(record, at, state=RecordState.DISPATCHED)
        case Started(at, worker):
            after = _started(record, at, worker)
        case DeadlinePassed(at, worker_grace):
            after = _expired(record, at, worker_grace)
        case Abandoned(at, termination):
            after = Refusal.RUNNING if running else _changed(record, at, termination=termination)
    return after


def termination_to_publish(record: InvocationRecord, now: datetime, worker_grace: timedelta) -> Termination | None:
    """Return the termination whose result a process may publish now, or None if it must not publish one."""
    if record.finished or _belongs_to_worker(record, now, worker_grace):
        return None
    return record.termination


def may_be_unpublished(record: InvocationRecord) -> bool:
    """Whether the message may be missing after a crash, and no process ends the invocation."""
    return record.state is RecordState.QUEUED and record.termination is None


def _started(record: InvocationRecord, at: datetime, worker: str) -> InvocationRecord | Refusal:
    """A worker that starts an invocation after its deadline ends it as expired."""
    if at >= record.deadline:
        return _expired(record, at, WORKER_GRACE)
    return _changed(record, at, state=RecordState.RUNNING, worker=worker, attempts=record.attempts + 1)


def _expired(record: InvocationRecord, at: datetime, worker_grace: timedelta) -> InvocationRecord | Refusal:
    if at < record.deadline:
        return Refusal.TOO_EARLY
    if _belongs_to_worker(record, at, worker_grace):
        return Refusal.RUNNING
    return _changed(record, at, termination=Termination.EXPIRED)


def _belongs_to_worker(record: InvocationRecord, now: datetime, worker_grace: timedelta) -> bool:
    return record.running and now - record.deadline < worker_grace


def _changed(record: InvocationRecord, at: datetime, **changes: object) -> InvocationRecord:
    return msgspec.structs.replace(record, updated_at=to_utc_milliseconds(at), **changes)


@dataclass(frozen=True)
class RecordAtRevision:
    """A record and its revision in the bucket."""

    record: InvocationRecord
    revision: int


def decode_record(value: bytes, revision: int) -> RecordAtRevision:
    """Decode a value of the bucket. Raises MessageDecodeError if the value is malformed."""
    return RecordAtRevision(decode(value, InvocationRecord), revision)


def record_headers(stored: RecordAtRevision | None) -> dict[str, str]:
    """Return the headers for a message. The sender must have just written or read the record."""
    return {REVISION_HEADER: str(stored.revision), RECORD_HEADER: encode(stored.record).decode()} if stored else {}


def record_from_headers(headers: Mapping[str, str]) -> RecordAtRevision | None:
    """Return the record in the headers of a message, or None if a header is absent or malformed."""
    revision, record = headers.get(REVISION_HEADER, ""), headers.get(RECORD_HEADER, "")
    if not record or not is_stream_sequence(revision):
        return None
    try:
        return decode_record(record.encode(errors="replace"), int(revision))
    except MessageDecodeError:
        return None
