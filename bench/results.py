"""How many results per second the result store writes, beside the same rows in a bare database.

    python -m bench.results [--results 6000]

The real process finds a full queue, as after a night in which it did not run: each result has the record of its
invocation and the headers that a sidecar gives it. It counts when it is in the database and on the disk. NATS keeps its
files, and SQLite its own, on the same disk.

Two floors. The same rows into the same tables, as many in a transaction as the process had on average
(`bench/floors/sqlite_inserts.py`): what the disk takes. And what a bare hop takes out of a queue of the same length, with one
write of a key and one acknowledgement for each (`bench/floors/nats_pipeline.py`): what NATS gives to one process.
"""

import argparse
import asyncio
from pathlib import Path

import msgspec

from bench.floors.nats_pipeline import create_streams, measure_consume_rate
from bench.floors.sqlite_inserts import measure_inserts
from bench.report import BenchmarkResult, Chart, Row, log_progress, report_and_exit
from bench.result_store_runs import (
    ResultBacklog,
    StoreThroughput,
    make_results,
    measure_result_store,
    start_result_store,
)
from gpu_runtime.result_store.result_codec import row_from_result
from localcluster.nats_server import NatsServer, temporary_nats_server
from localcluster.paths import scratch_dir

BODY_SIZES_BYTES = (100, 1_000, 10_000, 100_000)
"""Bytes of what a function answered."""
MAX_TOTAL_BYTES = 60_000_000
"""Of large bodies there are so many fewer."""


class BodySizeMeasurement(msgspec.Struct):
    body_bytes: int
    result_count: int
    throughput: StoreThroughput
    database_rows_per_second: float
    """Rows per second of the bare database."""
    nats_messages_per_second: float
    """Messages per second of the bare hop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=int, default=6000, help="in the queue, of small bodies")
    count = parser.parse_args().results
    report_and_exit("results", lambda: asyncio.run(measure(count)))


async def measure(count: int) -> BenchmarkResult:
    with scratch_dir("bench-results") as folder, temporary_nats_server() as server:
        found = [
            await measure_body_size(server, folder, body, min(count, MAX_TOTAL_BYTES // body))
            for body in BODY_SIZES_BYTES
        ]
    return BenchmarkResult([row for each in found for row in rows(each)], charts(found), found)


async def measure_body_size(server: NatsServer, folder: Path, body: int, count: int) -> BodySizeMeasurement:
    """On queues of its own. A first process makes them, and tells what starting costs."""
    log_progress(f"{count} results of {body} bytes")
    url, name = server.create_account().url, f"of-{body}"
    made = make_results(count, body, name)
    with start_result_store(folder, url, f"{name}-empty") as empty:
        cpu_of_starting = empty.cpu_seconds()
    async with ResultBacklog.connect(url) as queue:
        await queue.publish(made)
        done = await measure_result_store(queue, folder, url, name, cpu_of_starting)
    batch = max(1, round(done.mean_batch_size))
    seconds = measure_inserts(folder / f"{name}-floor.db", [row_from_result(each) for each in made], batch)
    await create_streams(url)
    return BodySizeMeasurement(
        body, count, done, count / seconds, await measure_consume_rate(url, "result", count, bytes(body))
    )


def rows(found: BodySizeMeasurement) -> list[Row]:
    size, done = f"{found.body_bytes} bytes", found.throughput
    return [
        Row(
            f"{size}: results per second, beside a bare database",
            done.results_per_second,
            "",
            found.database_rows_per_second,
        ),
        Row(
            f"{size}: results per second, beside a bare hop",
            done.results_per_second,
            "",
            found.nats_messages_per_second,
        ),
        Row(f"{size}: results in a transaction, in both", done.mean_batch_size),
        Row(f"{size}: CPU per result", 1000 * done.cpu_seconds / found.result_count, "ms"),
    ]


def charts(found: list[BodySizeMeasurement]) -> list[Chart]:
    lines = {
        "result store": [each.throughput.results_per_second for each in found],
        "floor: SQLite alone": [each.database_rows_per_second for each in found],
        "floor: NATS alone": [each.nats_messages_per_second for each in found],
    }
    return [
        Chart(
            "throughput", "results per second", "bytes of a result's body", [each.body_bytes for each in found], lines
        )
    ]


if __name__ == "__main__":
    main()
