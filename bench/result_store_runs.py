"""How fast the result store empties a full queue, and what stands in the queue before."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.kube_api import for_each_concurrently
from bench.measured_process import MeasuredProcess, start_process
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    record_headers,
)
from gpu_runtime.contract.messages.message_codec import encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import PubAck, Publisher

FUNCTION_ID = "bench"
CREATED_AT = to_utc_milliseconds(datetime.now(UTC))
TOPOLOGY = StreamTopology()
STORED_METRIC = "result_store_results_stored_total"
RUNNING_RECORD = InvocationRecord(
    request_hash="hash",
    serverless_request_id=FUNCTION_ID,
    state=RecordState.RUNNING,
    enqueued_at=CREATED_AT,
    deadline=CREATED_AT + timedelta(hours=1),
    updated_at=CREATED_AT,
)


class StoreThroughput(msgspec.Struct):
    """What the result store did with a full queue."""

    results_per_second: float
    mean_batch_size: float
    """Results in one transaction, on average."""
    cpu_seconds: float
    """Seconds, without those of starting."""


@dataclass(frozen=True)
class ResultBacklog:
    """The queue of results and the records of their invocations, as sidecars leave them."""

    nats: NatsConnection

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator["ResultBacklog"]:
        async with connect_nats(ConnectionOptions((url,), request_timeout=5)) as nats:
            await nats.wait_connected(10)
            yield cls(nats)

    async def publish(self, results: Sequence[Result]) -> None:
        """Each has a record, which says that it runs."""
        publisher = Publisher(self.nats)
        records, known = KeyValueBucket(self.nats, publisher, TOPOLOGY.record_bucket), dict[str, RecordAtRevision]()

        async def accept(invocation_id: str) -> None:
            revision = await records.create(invocation_id, encode(RUNNING_RECORD))
            known[invocation_id] = RecordAtRevision(RUNNING_RECORD, revision or 0)

        await for_each_concurrently(256, [each.invocation_id for each in results], accept)
        subject = TOPOLOGY.subjects.result(FUNCTION_ID)
        outcomes = await publisher.publish_many(
            OutgoingMessage(subject, encode(each), "", record_headers(known[each.invocation_id])) for each in results
        )
        if not all(isinstance(each, PubAck) for each in outcomes):
            raise RuntimeError("the queue does not take every result")

    async def message_count(self) -> int:
        info = await api_request(self.nats, f"STREAM.INFO.{TOPOLOGY.result_consumer.stream}")
        count: int = info["state"]["messages"]
        return count


def make_results(count: int, body: int, name: str) -> list[Result]:
    timings = Timings(enqueued_at=CREATED_AT, dispatched_at=CREATED_AT, started_at=CREATED_AT, finished_at=CREATED_AT)
    return [
        with_body(
            Result(
                invocation_id=f"{name}-{number}",
                serverless_request_id=FUNCTION_ID,
                state=ResultState.SUCCEEDED,
                timings=timings,
                worker="bench-1",
                attempts=1,
            ),
            "application/octet-stream",
            bytes(body),
        )
        for number in range(count)
    ]


@contextmanager
def start_result_store(folder: Path, url: str, name: str = "results") -> Iterator[MeasuredProcess]:
    """One that is ready, with a database of that name."""
    settings: dict[str, Any] = {"nats": {"urls": [url]}, "database": {"path": str(_database_path(folder, name))}}
    with start_process("result-store", folder, settings, MeasuredProcess.is_ready) as started:
        yield started


async def measure_result_store(
    queue: ResultBacklog, folder: Path, url: str, name: str, cpu_of_starting: float
) -> StoreThroughput:
    """A new process finds a full queue, and has stored and acknowledged every result of it."""
    with start_result_store(folder, url, name) as store:
        async with asyncio.timeout(120):
            while await queue.message_count():  # noqa: ASYNC110 - the queue tells nobody that it is empty
                await asyncio.sleep(0.1)
        stored, seconds = _stored_count_and_seconds(_database_path(folder, name))
        batches = store.metric_sum("result_store_batch_results_count")
        return StoreThroughput(
            stored / seconds, store.metric_sum(STORED_METRIC) / batches, store.cpu_seconds() - cpu_of_starting
        )


def _stored_count_and_seconds(path: Path) -> tuple[int, float]:
    """How many were stored in how many seconds, from the first transaction's beginning to the last one's.

    The database says when each was stored, so that nobody has to ask the process while it works.
    """
    with closing(sqlite3.connect(path)) as database:
        first, last = database.execute("SELECT min(stored_at), max(stored_at) FROM results").fetchone()
        (count,) = database.execute("SELECT count(*) FROM results WHERE stored_at < ?", (last,)).fetchone()
    return count, (last - first) / 1000


def _database_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.db"
