"""Measures how fast the result store stores the backlog of the result stream, and creates that backlog."""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec

from bench.benchmark_keys import TICKETS, ticket_section
from bench.kube_api import for_each_concurrently
from bench.measured_process import MeasuredProcess, start_process
from gpu_runtime.contract.messages.invocation_record import (
    InvocationRecord,
    RecordAtRevision,
    RecordState,
    record_headers,
)
from gpu_runtime.contract.messages.invocation_ticket import ticket_headers
from gpu_runtime.contract.messages.message_codec import encode, to_utc_milliseconds
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.streams import StreamTopology
from gpu_runtime.jetstream.api import api_request
from gpu_runtime.jetstream.connection import NatsConnection, connect_nats
from gpu_runtime.jetstream.connection_options import ConnectionOptions
from gpu_runtime.jetstream.delivery import OutgoingMessage
from gpu_runtime.jetstream.kv import KeyValueBucket
from gpu_runtime.jetstream.publisher import Publisher

FUNCTION_ID = "bench"
CREATED_AT = to_utc_milliseconds(datetime.now(UTC))
TOPOLOGY = StreamTopology()
STORED_METRIC = "gpu_runtime_results_stored_total"
RUNNING_RECORD = InvocationRecord(
    request_hash="hash",
    serverless_request_id=FUNCTION_ID,
    function_id=FUNCTION_ID,
    state=RecordState.RUNNING,
    enqueued_at=CREATED_AT,
    deadline=CREATED_AT + timedelta(hours=1),
    updated_at=CREATED_AT,
)


class StoreThroughput(msgspec.Struct):
    """The throughput of the result store for a backlog."""

    results_per_second: float
    mean_batch_size: float
    """The mean number of results in one transaction."""
    cpu_seconds: float
    """The CPU time without the startup."""


@dataclass(frozen=True)
class ResultBacklog:
    """The result stream and the invocation records, with the same content as sidecars write."""

    nats: NatsConnection

    @classmethod
    @asynccontextmanager
    async def connect(cls, url: str) -> AsyncIterator["ResultBacklog"]:
        async with connect_nats(ConnectionOptions((url,), request_timeout=5)) as nats:
            await nats.wait_connected(10)
            yield cls(nats)

    async def publish(self, results: Sequence[Result]) -> None:
        """Create a record in the state running for each result, and publish the results."""
        publisher = Publisher(self.nats)
        records, record_revisions = (
            KeyValueBucket(self.nats, publisher, TOPOLOGY.record_bucket),
            dict[str, RecordAtRevision](),
        )

        async def accept(invocation_id: str) -> None:
            revision = await records.create(invocation_id, encode(RUNNING_RECORD))
            record_revisions[invocation_id] = RecordAtRevision(RUNNING_RECORD, revision or 0)

        await for_each_concurrently(256, [each.invocation_id for each in results], accept)
        subject = TOPOLOGY.subjects.result(FUNCTION_ID)
        messages = (
            OutgoingMessage(
                subject,
                encode(each),
                "",
                record_headers(record_revisions[each.invocation_id])
                | ticket_headers(TICKETS.sign_record(each.invocation_id, RUNNING_RECORD)),
            )
            for each in results
        )
        await for_each_concurrently(256, messages, publisher.publish)

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
                function_id=FUNCTION_ID,
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
def start_result_store(folder: Path, url: str, name: str = "results", **overrides: Any) -> Iterator[MeasuredProcess]:
    """Run a result store with a database of that name, and wait until it is ready."""
    database = {"path": str(_database_path(folder, name))}
    settings: dict[str, Any] = {"nats": {"urls": [url]}, "database": database, **ticket_section(folder)}
    with start_process("result-store", folder, settings | overrides, MeasuredProcess.is_ready) as started:
        yield started


async def measure_result_store(
    backlog: ResultBacklog, folder: Path, url: str, name: str, startup_cpu_seconds: float
) -> StoreThroughput:
    """Start a process and measure until it has stored and acknowledged all results of the backlog."""
    with start_result_store(folder, url, name) as store:
        async with asyncio.timeout(120):
            while await backlog.message_count():  # noqa: ASYNC110 - JetStream has no notification of an empty stream
                await asyncio.sleep(0.1)
        stored, seconds = _stored_count_and_seconds(_database_path(folder, name))
        batches = store.metric_sum("gpu_runtime_result_batch_size_count")
        return StoreThroughput(
            stored / seconds, store.metric_sum(STORED_METRIC) / batches, store.cpu_seconds() - startup_cpu_seconds
        )


def _stored_count_and_seconds(path: Path) -> tuple[int, float]:
    """Return the number of stored results, and the time from the start of the first to that of the last transaction.

    The database contains the time of each result, so the benchmark does not need to query the process while it works.
    """
    with closing(sqlite3.connect(path)) as database:
        first, last = database.execute("SELECT min(stored_at), max(stored_at) FROM results").fetchone()
        (count,) = database.execute("SELECT count(*) FROM results WHERE stored_at < ?", (last,)).fetchone()
    return count, (last - first) / 1000


def _database_path(folder: Path, name: str) -> Path:
    return folder / f"{name}.db"
