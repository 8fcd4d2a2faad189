"""The floor of storing: the same rows into the same tables of SQLite, so many in a transaction, and nothing else.

No queue, no record of an invocation, no look at what stands already, no thread between. Each transaction is on the disk
when the next one begins, as it is with the result store.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_runtime.result_repository.repository import ResultRow
from gpu_runtime.result_repository.sqlite_schema import open_database

INSERT_SQL = """
    INSERT INTO results (invocation_id, request_id, state, stored_at, head, body) VALUES (?, ?, ?, ?, ?, ?)"""


def measure_inserts(path: Path, rows: Sequence[ResultRow], batch: int) -> float:
    """Seconds for all of them."""
    values = [(row.invocation_id, row.request_id, row.state, 0, row.head, row.body) for row in rows]
    database = open_database(path)
    try:
        started = time.perf_counter()
        for first in range(0, len(values), batch):
            database.execute("BEGIN IMMEDIATE")
            database.executemany(INSERT_SQL, values[first : first + batch])
            database.execute("COMMIT")
        return time.perf_counter() - started
    finally:
        database.close()
