"""The floor of storing results: plain inserts of the same rows into the same SQLite tables, with the same batch size.

There is no stream, no invocation record, no check of existing rows, and no thread. Each transaction is on disk before
the next one starts, as in the result store.
"""

import time
from collections.abc import Sequence
from pathlib import Path

from gpu_runtime.result_repository.repository import ResultRow
from gpu_runtime.result_repository.sqlite_schema import open_database

INSERT_SQL = """
    INSERT INTO results (invocation_id, request_id, state, stored_at, accepted_at, head, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)"""


def measure_inserts(path: Path, rows: Sequence[ResultRow], batch: int) -> float:
    """Return the time for all rows in seconds."""
    values = [(row.invocation_id, row.request_id, row.state, 0, 0, row.head, row.body) for row in rows]
    database = open_database(path)
    try:
        started_at = time.perf_counter()
        for first in range(0, len(values), batch):
            database.execute("BEGIN IMMEDIATE")
            database.executemany(INSERT_SQL, values[first : first + batch])
            database.execute("COMMIT")
        return time.perf_counter() - started_at
    finally:
        database.close()
