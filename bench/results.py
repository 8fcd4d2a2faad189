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

from bench.floors.nats_pipeline import drained, make_queues
from bench.floors.sqlite_inserts import insert_bare
from bench.report import Chart, Findings, Row, present, tell
from bench.result_store_runs import Emptied, Queue, emptied, result_store, results
from gpu_runtime.result_store.result_codec import row_of
from localcluster.nats_server import NatsServer, nats_server
from localcluster.paths import scratch

BODIES = (100, 1_000, 10_000, 100_000)
"""Bytes of what a function answered."""
MOST_BYTES = 60_000_000
"""Of large bodies there are so many fewer."""


class Storing(msgspec.Struct):
    body: int
    results: int
    emptied: Emptied
    database: float
    """Rows per second of the bare database."""
    queue: float
    """Messages per second of the bare hop."""


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--results", type=int, default=6000, help="in the queue, of small bodies")
    count = parser.parse_args().results
    present("results", lambda: asyncio.run(measure(count)))


async def measure(count: int) -> Findings:
    with scratch("bench-results") as folder, nats_server() as server:
        found = [await stored(server, folder, body, min(count, MOST_BYTES // body)) for body in BODIES]
    return Findings([row for each in found for row in rows(each)], charts(found), found)


async def stored(server: NatsServer, folder: Path, body: int, count: int) -> Storing:
    """On queues of its own. A first process makes them, and tells what starting costs."""
    tell(f"{count} results of {body} bytes")
    url, name = server.account().url, f"of-{body}"
    made = results(count, body, name)
    with result_store(folder, url, f"{name}-empty") as empty:
        cpu_of_starting = empty.cpu()
    async with Queue.reached(url) as queue:
        await queue.fill(made)
        done = await emptied(queue, folder, url, name, cpu_of_starting)
    batch = max(1, round(done.batch))
    seconds = insert_bare(folder / f"{name}-floor.db", [row_of(each) for each in made], batch)
    await make_queues(url)
    return Storing(body, count, done, count / seconds, await drained(url, "result", count, bytes(body)))


def rows(found: Storing) -> list[Row]:
    size, done = f"{found.body} bytes", found.emptied
    return [
        Row(f"{size}: results per second, beside a bare database", done.per_second, "", found.database),
        Row(f"{size}: results per second, beside a bare hop", done.per_second, "", found.queue),
        Row(f"{size}: results in a transaction, in both", done.batch),
        Row(f"{size}: CPU per result", 1000 * done.cpu / found.results, "ms"),
    ]


def charts(found: list[Storing]) -> list[Chart]:
    lines = {
        "result store": [each.emptied.per_second for each in found],
        "floor: SQLite alone": [each.database for each in found],
        "floor: NATS alone": [each.queue for each in found],
    }
    return [Chart("throughput", "results per second", "bytes of a result's body", [each.body for each in found], lines)]


if __name__ == "__main__":
    main()
