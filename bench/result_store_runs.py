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

from bench.kube_api import at_a_time
from bench.measured_process import Program, program
from gpu_runtime.contract.messages.invocation_record import InvocationRecord, Known, Stage, headers_of
from gpu_runtime.contract.messages.message_codec import encode, utc
from gpu_runtime.contract.messages.result import Result, ResultState, Timings, with_body
from gpu_runtime.contract.messages.streams import Topology
from gpu_runtime.jetstream.api import call
from gpu_runtime.jetstream.connection import Connection, connection
from gpu_runtime.jetstream.connection_options import Options
from gpu_runtime.jetstream.delivery import Outgoing
from gpu_runtime.jetstream.kv import Bucket
from gpu_runtime.jetstream.publisher import Publisher, Stored

FUNCTION = "bench"
NOW = utc(datetime.now(UTC))
TOPOLOGY = Topology()
STORED = "result_store_results_stored_total"
RECORD = InvocationRecord(
    request_hash="hash",
    serverless_request_id=FUNCTION,
    stage=Stage.RUNNING,
    enqueued_at=NOW,
    deadline=NOW + timedelta(hours=1),
    updated_at=NOW,
)


class Emptied(msgspec.Struct):
    """What the result store did with a full queue."""

    per_second: float
    batch: float
    """Results in one transaction, on average."""
    cpu: float
    """Seconds, without those of starting."""


@dataclass(frozen=True)
class Queue:
    """The queue of results and the records of their invocations, as sidecars leave them."""

    nats: Connection

    @classmethod
    @asynccontextmanager
    async def reached(cls, url: str) -> AsyncIterator["Queue"]:
        async with connection(Options((url,), request_timeout=5)) as nats:
            await nats.wait(10)
            yield cls(nats)

    async def fill(self, results: Sequence[Result]) -> None:
        """Each has a record, which says that it runs."""
        publisher = Publisher(self.nats)
        records, known = Bucket(self.nats, publisher, TOPOLOGY.state), dict[str, Known]()

        async def accept(invocation_id: str) -> None:
            revision = await records.create(invocation_id, encode(RECORD))
            known[invocation_id] = Known(RECORD, revision or 0)

        await at_a_time(256, [each.invocation_id for each in results], accept)
        subject = TOPOLOGY.subjects.result(FUNCTION)
        outcomes = await publisher.publish_many(
            Outgoing(subject, encode(each), "", headers_of(known[each.invocation_id])) for each in results
        )
        if not all(isinstance(each, Stored) for each in outcomes):
            raise RuntimeError("the queue does not take every result")

    async def waiting(self) -> int:
        info = await call(self.nats, f"STREAM.INFO.{TOPOLOGY.storing.stream}")
        count: int = info["state"]["messages"]
        return count


def results(count: int, body: int, name: str) -> list[Result]:
    timings = Timings(enqueued_at=NOW, dispatched_at=NOW, started_at=NOW, finished_at=NOW)
    return [
        with_body(
            Result(
                invocation_id=f"{name}-{number}",
                serverless_request_id=FUNCTION,
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
def result_store(folder: Path, url: str, name: str = "results") -> Iterator[Program]:
    """One that is ready, with a database of that name."""
    settings: dict[str, Any] = {"nats": {"urls": [url]}, "database": {"path": str(_database(folder, name))}}
    with program("result-store", folder, settings, Program.is_ready) as started:
        yield started


async def emptied(queue: Queue, folder: Path, url: str, name: str, cpu_of_starting: float) -> Emptied:
    """A new process finds a full queue, and has stored and acknowledged every result of it."""
    with result_store(folder, url, name) as store:
        async with asyncio.timeout(120):
            while await queue.waiting():  # noqa: ASYNC110 - the queue tells nobody that it is empty
                await asyncio.sleep(0.1)
        stored, seconds = _pace(_database(folder, name))
        batches = store.metric("result_store_batch_results_count")
        return Emptied(stored / seconds, store.metric(STORED) / batches, store.cpu() - cpu_of_starting)


def _pace(path: Path) -> tuple[int, float]:
    """How many were stored in how many seconds, from the first transaction's beginning to the last one's.

    The database says when each was stored, so that nobody has to ask the process while it works.
    """
    with closing(sqlite3.connect(path)) as database:
        first, last = database.execute("SELECT min(stored_at), max(stored_at) FROM results").fetchone()
        (count,) = database.execute("SELECT count(*) FROM results WHERE stored_at < ?", (last,)).fetchone()
    return count, (last - first) / 1000


def _database(folder: Path, name: str) -> Path:
    return folder / f"{name}.db"
