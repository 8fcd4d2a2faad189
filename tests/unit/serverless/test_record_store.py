"""The record store writes a record with one request, and has one reaction to missing and unreadable records."""

import asyncio
import logging
from datetime import UTC, datetime, timedelta
from typing import cast

import msgspec
import pytest

from gpu_runtime.contract.messages.dispatch import Dispatch
from gpu_runtime.contract.messages.invocation import Invocation
from gpu_runtime.contract.messages.invocation_messages import dispatched_record
from gpu_runtime.contract.messages.invocation_record import (
    Abandoned,
    CancelRequested,
    Dispatched,
    RecordAtRevision,
    RecordState,
    Refusal,
    ResultStored,
    Started,
    Termination,
)
from gpu_runtime.contract.messages.message_codec import Message, decode, encode
from gpu_runtime.contract.messages.result import ResultState
from gpu_runtime.invocation_records.record_store import (
    Applied,
    DirectWorkerRecords,
    InvocationRecordStore,
    RecordMissing,
    RecordUnreadable,
    Refused,
    WorkerRecords,
)
from gpu_runtime.jetstream.connection import NatsConnection
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher
from gpu_runtime.jetstream.request_reply import serve_requests
from gpu_runtime.jetstream.stream_admin import ensure_bucket
from tests.unit.serverless.in_memory_nats import InMemoryConnection, InMemoryNats, NoFaults
from tests.unit.serverless.simulated_processes import TOPOLOGY

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DISPATCH = Dispatch(
    invocation=Invocation(
        invocation_id="i", serverless_request_id="f", function_id="f", enqueued_at=NOW, timeout_seconds=60
    ),
    deadline=NOW + timedelta(seconds=60),
    dispatched_at=NOW,
)
QUEUED = dispatched_record(DISPATCH)
LATER = NOW + timedelta(seconds=1)


class RequestCounter(NoFaults):
    def __init__(self) -> None:
        self.requests = 0

    def before_request(self, _connection: InMemoryConnection, _subject: str) -> None:
        self.requests += 1


@pytest.fixture
def network() -> RequestCounter:
    return RequestCounter()


@pytest.fixture
async def connection(network: RequestCounter) -> NatsConnection:
    connection = cast(NatsConnection, InMemoryConnection(InMemoryNats(), "test", network))
    await ensure_bucket(connection, TOPOLOGY.record_bucket)
    return connection


@pytest.fixture
def records(connection: NatsConnection) -> InvocationRecordStore:
    return InvocationRecordStore(KeyValueBucket(connection, Publisher(connection), TOPOLOGY.record_bucket))


async def created(records: InvocationRecordStore) -> RecordAtRevision:
    stored = await records.create("i", QUEUED)
    assert stored is not None
    return stored


async def test_current_header_needs_one_request(records: InvocationRecordStore, network: RequestCounter) -> None:
    stored = await created(records)
    before = network.requests
    changed = await records.apply("i", Started(LATER, "w"), stored)
    assert isinstance(changed, Applied)
    assert (changed.stored.record.state, network.requests - before) == (RecordState.RUNNING, 1)
    assert await records.read("i") == changed.stored


async def test_stale_header_never_overwrites_a_termination(records: InvocationRecordStore) -> None:
    stored = await created(records)
    await records.apply("i", CancelRequested(LATER), stored)
    changed = await records.apply("i", Started(LATER, "w"), stored)
    assert isinstance(changed, Refused)
    assert (changed.refusal, changed.stored.record.termination) == (Refusal.TERMINATING, Termination.CANCELLED)


async def test_header_that_refuses_the_event_is_compared_with_the_record(records: InvocationRecordStore) -> None:
    """A header may be stale in both directions: only the record says whether the event is refused."""
    stored = await created(records)
    running = RecordAtRevision(msgspec.structs.replace(QUEUED, state=RecordState.RUNNING), stored.revision)
    changed = await records.apply("i", Abandoned(LATER, Termination.FUNCTION_GONE), running)
    assert isinstance(changed, Applied)
    assert changed.stored.record.termination is Termination.FUNCTION_GONE


async def test_one_of_two_concurrent_writers_is_refused(records: InvocationRecordStore) -> None:
    stored = await created(records)
    outcomes = await asyncio.gather(
        records.apply("i", Started(LATER, "w"), stored),
        records.apply("i", Abandoned(LATER, Termination.FUNCTION_GONE), stored),
    )
    assert sorted(type(each).__name__ for each in outcomes) == ["Applied", "Refused"]


async def test_missing_record_is_restored_from_the_message(records: InvocationRecordStore) -> None:
    changed = await records.apply("i", Dispatched(LATER), None, lambda: QUEUED)
    assert isinstance(changed, Applied)
    assert (await records.read("i")) == changed.stored
    assert changed.stored.record.state is RecordState.DISPATCHED


async def test_missing_record_without_a_message_stays_missing(records: InvocationRecordStore) -> None:
    with pytest.raises(RecordMissing):
        await records.apply("i", ResultStored(LATER, ResultState.FAILED), None)
    assert await records.read("i") is None


async def test_unreadable_record_is_kept_and_logged_once(
    records: InvocationRecordStore, caplog: pytest.LogCaptureFixture
) -> None:
    stored = await created(records)
    await records.bucket.update("i", b"not json", stored.revision)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            with pytest.raises(RecordUnreadable):
                await records.apply("i", Dispatched(LATER), stored, lambda: QUEUED)
    entry = await records.bucket.get("i")
    assert entry is not None
    assert entry.value == b"not json"
    assert [each.message for each in caplog.records] == [
        "invocation record is unreadable; the invocation waits until the process is upgraded or the record is deleted"
    ]


class StartRequest(Message, frozen=True, kw_only=True):
    """What a worker without access to the bucket sends to another process."""

    dispatch: bytes
    revision: int = 0
    record: bytes = b""
    now: datetime


class StartResponse(Message, frozen=True, kw_only=True):
    revision: int
    record: bytes
    refusal: str = ""


class RemoteWorkerRecords:
    """Asks another process over NATS request/reply. It never accesses the bucket."""

    def __init__(self, connection: NatsConnection) -> None:
        self._connection = connection

    async def start(self, dispatch: Dispatch, known: RecordAtRevision | None, now: datetime) -> Applied | Refused:
        header = {"revision": known.revision, "record": encode(known.record)} if known else {}
        request = StartRequest(dispatch=encode(dispatch), now=now, **header)  # type: ignore[arg-type]
        reply = await self._connection.request("records.start", encode(request), timeout_seconds=5)
        response = decode(reply.data, StartResponse)
        stored = RecordAtRevision(decode(response.record, type(QUEUED)), response.revision)
        return Refused(Refusal[response.refusal], stored) if response.refusal else Applied(stored)

    async def read(self, invocation_id: str) -> RecordAtRevision | None:
        raise NotImplementedError


class StartHandler:
    """The other process: it starts invocations on behalf of workers."""

    def __init__(self, direct: DirectWorkerRecords) -> None:
        self._direct = direct

    async def __call__(self, data: bytes) -> bytes:
        request = decode(data, StartRequest)
        known = RecordAtRevision(decode(request.record, type(QUEUED)), request.revision) if request.record else None
        outcome = await self._direct.start(decode(request.dispatch, Dispatch), known, request.now)
        refusal = outcome.refusal.name if isinstance(outcome, Refused) else ""
        stored = outcome.stored
        return encode(StartResponse(revision=stored.revision, record=encode(stored.record), refusal=refusal))


@pytest.mark.parametrize("is_remote", [False, True], ids=["direct", "over request/reply"])
async def test_worker_starts_an_invocation_only_if_the_record_allows_it(
    records: InvocationRecordStore, connection: NatsConnection, is_remote: bool
) -> None:
    direct = DirectWorkerRecords(records, "w")
    async with serve_requests(connection, "records.start", StartHandler(direct)):
        worker: WorkerRecords = RemoteWorkerRecords(connection) if is_remote else direct
        started = await worker.start(DISPATCH, await created(records), LATER)
        assert isinstance(started, Applied)
        assert (started.stored.record.worker, started.stored.record.attempts) == ("w", 1)
        assert started.stored == await records.read("i")

        await records.apply("i", CancelRequested(LATER), None)
        refused = await worker.start(DISPATCH, started.stored, LATER)
        assert isinstance(refused, Refused)
        assert refused.refusal is Refusal.TERMINATING

        await records.apply("i", ResultStored(LATER, ResultState.CANCELLED), None)
        finished = await worker.start(DISPATCH, None, LATER)
        assert isinstance(finished, Refused)
        assert finished.refusal is Refusal.FINISHED
