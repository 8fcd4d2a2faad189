"""Measures how many results per second the result store writes, and compares it with plain inserts of the same rows.

    python -m bench.results [--results 6000]

The real process starts with a backlog, as after a long downtime. Each result has an invocation record and the headers
that a sidecar sets. A result counts when it is in the database and on disk. The files of NATS and SQLite are on the
same disk.

There are two floors. `bench/floors/sqlite_inserts.py` inserts the same rows into the same tables, with the mean batch
size of the process. It shows the limit of the disk. `bench/floors/nats_pipeline.py` consumes a stream of the same
length, with one key write and one ack for each message. It shows the limit of NATS for one process.
"""

import argparse
import asyncio
from datetime import UTC, datetime
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
from gpu_runtime.result_store.result_consumer import row_from_result
from localcluster.nats_server import NatsServer, temporary_nats_server
from localcluster.paths import scratch_dir

BODY_SIZES_BYTES = (100, 1_000, 10_000, 100_000)
"""The sizes of the response body of a function."""
MAX_TOTAL_BYTES = 60_000_000
"""The limit of the total size of the bodies. It reduces the number of results with large bodies."""


class BodySizeMeasurement(msgspec.Struct):
    body_bytes: int
    result_count: int
    throughput: StoreThroughput
    database_rows_per_second: float
    """The floor: rows per second of plain inserts."""
    nats_messages_per_second: float
    """The floor: messages per second of a plain NATS consumer."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=int, default=6000, help="number of results in the backlog, for small bodies")
    count = parser.parse_args().results
    report_and_exit("results", lambda: asyncio.run(measure(count)))


async def measure(count: int) -> BenchmarkResult:
    with scratch_dir("bench-results") as folder, temporary_nats_server() as server:
        measurements = [
            await measure_body_size(server, folder, body, min(count, MAX_TOTAL_BYTES // body))
            for body in BODY_SIZES_BYTES
        ]
    return BenchmarkResult([row for each in measurements for row in rows(each)], charts(measurements), measurements)


async def measure_body_size(server: NatsServer, folder: Path, body: int, count: int) -> BodySizeMeasurement:
    """Measure with streams of its own. A first process creates the streams and shows the CPU time of a startup."""
    log_progress(f"{count} results of {body} bytes")
    url, name = server.create_account().url, f"of-{body}"
    results = make_results(count, body, name)
    with start_result_store(folder, url, f"{name}-empty") as empty:
        startup_cpu_seconds = empty.cpu_seconds()
    async with ResultBacklog.connect(url) as backlog:
        await backlog.publish(results)
        throughput = await measure_result_store(backlog, folder, url, name, startup_cpu_seconds)
    batch, now = max(1, round(throughput.mean_batch_size)), datetime.now(UTC)
    seconds = measure_inserts(folder / f"{name}-floor.db", [row_from_result(each, now) for each in results], batch)
    await create_streams(url)
    return BodySizeMeasurement(
        body, count, throughput, count / seconds, await measure_consume_rate(url, "result", count, bytes(body))
    )


def rows(measurement: BodySizeMeasurement) -> list[Row]:
    size, throughput = f"{measurement.body_bytes} bytes", measurement.throughput
    return [
        Row(
            f"{size}: results per second, floor: plain inserts",
            throughput.results_per_second,
            "",
            measurement.database_rows_per_second,
        ),
        Row(
            f"{size}: results per second, floor: plain NATS consumer",
            throughput.results_per_second,
            "",
            measurement.nats_messages_per_second,
        ),
        Row(f"{size}: results in a transaction", throughput.mean_batch_size),
        Row(f"{size}: CPU per result", 1000 * throughput.cpu_seconds / measurement.result_count, "ms"),
    ]


def charts(measurements: list[BodySizeMeasurement]) -> list[Chart]:
    lines = {
        "result store": [each.throughput.results_per_second for each in measurements],
        "floor: SQLite alone": [each.database_rows_per_second for each in measurements],
        "floor: NATS alone": [each.nats_messages_per_second for each in measurements],
    }
    return [
        Chart(
            "throughput",
            "results per second",
            "bytes of a result's body",
            [each.body_bytes for each in measurements],
            lines,
        )
    ]


if __name__ == "__main__":
    main()
