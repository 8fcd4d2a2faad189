"""Stores results in a SQLite file, with one connection for writes and one for reads, each in its own thread.

- Write-ahead log: reads do not wait for writes, and a commit is one sequential write.
- `synchronous=FULL`: a commit returns after the log is on disk. This costs one fsync per transaction, so callers insert
  many results per transaction. With a weaker setting, a power failure could lose acknowledged results.
- SQLite reuses the pages of deleted results. The file does not shrink.
- Another process may use the file at the same time. A connection waits for the locks of that process, up to the lock
  timeout.
"""

import asyncio
import sqlite3
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import TypeVar

from gpu_runtime.result_repository.errors import RepositoryUnavailable
from gpu_runtime.result_repository.eviction import (
    EVICTION_BATCH_SIZE,
    EvictionCandidate,
    Surplus,
    expired_batch,
    oversized_batch,
)
from gpu_runtime.result_repository.repository import (
    EvictedCounts,
    InsertOutcome,
    RepositorySize,
    ResultPage,
    ResultRow,
    RetentionLimits,
)
from gpu_runtime.result_repository.sqlite_schema import COUNT_PERIOD_MILLISECONDS, open_database

T = TypeVar("T")

_INSERT = """
    INSERT INTO results (invocation_id, request_id, state, stored_at, accepted_at, head, body)
    VALUES (?, ?, ?, ?, ?, ?, ?)
    ON CONFLICT (invocation_id) DO NOTHING"""
_DELETE_ACCEPTED_BEFORE = "DELETE FROM results WHERE invocation_id = ? AND accepted_at < ?"
_SELECT_STATE = "SELECT state FROM results WHERE invocation_id = ?"
_SELECT_RESULT = "SELECT invocation_id, request_id, state, head, body, accepted_at FROM results WHERE invocation_id = ?"
_SELECT_PAGE = """
    SELECT number, head FROM results
    WHERE request_id = :request_id AND number < :before AND (:state IS NULL OR state = :state)
    ORDER BY number DESC LIMIT :limit"""
_SELECT_OLDEST = "SELECT number, stored_at, length(head) + length(body) FROM results ORDER BY number LIMIT ?"
_SELECT_TWO_LARGEST_FUNCTIONS = "SELECT request_id, result_bytes FROM function_usage ORDER BY result_bytes DESC LIMIT 2"
_SELECT_OLDEST_OF_FUNCTION = """
    SELECT number, stored_at, length(head) + length(body) FROM results WHERE request_id = ? ORDER BY number LIMIT ?"""
_DELETE_UP_TO = "DELETE FROM results WHERE number <= ?"
_DELETE_OF_FUNCTION_UP_TO = "DELETE FROM results WHERE request_id = ? AND number <= ?"
_SELECT_COUNT_SINCE = """
    SELECT coalesce(sum(result_count), 0) FROM result_counts WHERE request_id = ? AND period >= ?"""
_DELETE_COUNTS_BEFORE = "DELETE FROM result_counts WHERE period < ?"
_SELECT_COUNT = "SELECT coalesce(sum(result_count), 0) FROM function_usage"

_MAX_ROW_NUMBER = 2**63 - 1

TOLERANCE_DIVISOR = 1024
"""A function can lose up to this part of the maximum size of the database more than another function of equal size."""


class SQLiteThread:
    """Runs the work of one connection in its own thread, one call at a time, without blocking the event loop."""

    def __init__(self, thread: ThreadPoolExecutor, database: sqlite3.Connection) -> None:
        self._thread, self._database = thread, database

    @classmethod
    @asynccontextmanager
    async def start(cls, name: str, connect: Callable[[], sqlite3.Connection]) -> AsyncIterator["SQLiteThread"]:
        loop = asyncio.get_running_loop()
        with ThreadPoolExecutor(1, thread_name_prefix=name) as thread:
            connection = thread.submit(connect)
            try:
                database = await asyncio.wrap_future(connection)
            except BaseException:
                connection.add_done_callback(_close_unclaimed)
                raise
            try:
                yield cls(thread, database)
            finally:
                # If a write is still running, the close is queued after it, so the write completes.
                await asyncio.shield(loop.run_in_executor(thread, database.close))

    async def run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """Run the work in the thread. If the caller is cancelled, the work still completes."""
        return await asyncio.get_running_loop().run_in_executor(self._thread, self._run, work)

    def _run(self, work: Callable[[sqlite3.Connection], T]) -> T:
        try:
            return work(self._database)
        except sqlite3.Error as error:
            raise RepositoryUnavailable(
                f"{error} ({getattr(error, 'sqlite_errorname', type(error).__name__)})"
            ) from error


class SQLiteResultRepository:
    """ResultRepository in a SQLite file. Create it with open_repository()."""

    def __init__(self, writer: SQLiteThread, reader: SQLiteThread) -> None:
        self._writer, self._reader = writer, reader

    async def insert(self, rows: Sequence[ResultRow], now: datetime) -> list[InsertOutcome]:
        return await self._writer.run(lambda database: _insert_rows(database, rows, now))

    async def get(self, invocation_id: str) -> ResultRow | None:
        return await self._reader.run(lambda database: _get_row(database, invocation_id))

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> ResultPage:
        parameters: dict[str, int | str | None] = {
            "request_id": request_id,
            "state": state,
            "before": _MAX_ROW_NUMBER if before is None else before,
            "limit": limit + 1,
        }
        return await self._reader.run(lambda database: _get_page(database, parameters, limit))

    async def count_since(self, request_id: str, since: datetime) -> int:
        return await self._reader.run(
            lambda database: _scalar(database, _SELECT_COUNT_SINCE, request_id, _count_period(since))
        )

    async def evict(self, limits: RetentionLimits, now: datetime) -> EvictedCounts:
        return await self._writer.run(lambda database: _evict(database, limits, now))

    async def size(self) -> RepositorySize:
        return await self._reader.run(
            lambda database: RepositorySize(_scalar(database, _SELECT_COUNT), _used_bytes(database))
        )


def _close_unclaimed(connection: "Future[sqlite3.Connection]") -> None:
    """Close a connection that was opened after its caller was cancelled."""
    if not connection.cancelled() and connection.exception() is None:
        connection.result().close()


@asynccontextmanager
async def open_repository(path: Path) -> AsyncIterator[SQLiteResultRepository]:
    """Open the repository in a file, and create the file if it does not exist.

    Raise RepositoryIncompatible if the file cannot be used, and RepositoryUnavailable if a retry may succeed.
    """
    async with (
        SQLiteThread.start("results-writer", lambda: open_database(path)) as writer,
        SQLiteThread.start("results-reader", lambda: open_database(path)) as reader,
    ):
        yield SQLiteResultRepository(writer, reader)


def _insert_rows(database: sqlite3.Connection, rows: Sequence[ResultRow], now: datetime) -> list[InsertOutcome]:
    with _transaction(database):
        return [_insert_row(database, row, _milliseconds(now)) for row in rows]


def _insert_row(database: sqlite3.Connection, row: ResultRow, stored_at: int) -> InsertOutcome:
    accepted_at = _milliseconds(row.accepted_at)
    values = (row.invocation_id, row.request_id, row.state, stored_at, accepted_at, row.head, row.body)
    if database.execute(_INSERT, values).rowcount:
        return InsertOutcome(row.state, inserted=True)
    if database.execute(_DELETE_ACCEPTED_BEFORE, (row.invocation_id, accepted_at)).rowcount:
        database.execute(_INSERT, values)
        return InsertOutcome(row.state, inserted=True)
    (state,) = database.execute(_SELECT_STATE, (row.invocation_id,)).fetchone()
    return InsertOutcome(state, inserted=False)


def _get_row(database: sqlite3.Connection, invocation_id: str) -> ResultRow | None:
    values = database.execute(_SELECT_RESULT, (invocation_id,)).fetchone()
    if not values:
        return None
    invocation_id, request_id, state, head, body, accepted_at = values
    return ResultRow(invocation_id, request_id, state, head, body, _instant(accepted_at))


def _get_page(database: sqlite3.Connection, parameters: dict[str, int | str | None], limit: int) -> ResultPage:
    heads = database.execute(_SELECT_PAGE, parameters).fetchall()
    return ResultPage(tuple(heads[:limit]), has_more=len(heads) > limit)


def _evict(database: sqlite3.Connection, limits: RetentionLimits, now: datetime) -> EvictedCounts:
    expired = expired_batch(_candidates(database, _SELECT_OLDEST, EVICTION_BATCH_SIZE), now - limits.max_age)
    if expired:
        with _transaction(database):
            database.execute(_DELETE_UP_TO, (expired.last_number,))
        return EvictedCounts(by_ttl=expired.count)
    database.execute(_DELETE_COUNTS_BEFORE, (_count_period(now - limits.max_age),))
    if (excess_bytes := _used_bytes(database) - limits.max_bytes) <= 0:
        return EvictedCounts()
    return _evict_from_largest_function(database, excess_bytes, limits)


def _evict_from_largest_function(
    database: sqlite3.Connection, excess_bytes: int, limits: RetentionLimits
) -> EvictedCounts:
    usage = database.execute(_SELECT_TWO_LARGEST_FUNCTIONS).fetchall()
    if not usage:
        return EvictedCounts()
    (largest, most_bytes), (_, next_bytes) = [*usage, ("", 0)][:2]
    surplus = Surplus(excess_bytes, most_bytes - next_bytes + limits.max_bytes // TOLERANCE_DIVISOR)
    batch = oversized_batch(_candidates(database, _SELECT_OLDEST_OF_FUNCTION, largest, EVICTION_BATCH_SIZE), surplus)
    with _transaction(database):
        database.execute(_DELETE_OF_FUNCTION_UP_TO, (largest, batch.last_number))
    return EvictedCounts(by_size=batch.count)


def _candidates(database: sqlite3.Connection, statement: str, *parameters: str | int) -> Iterator[EvictionCandidate]:
    for number, stored_at, size in database.execute(statement, parameters).fetchall():
        yield EvictionCandidate(number, _instant(stored_at), size)


def _milliseconds(instant: datetime) -> int:
    return round(instant.timestamp() * 1000)


def _count_period(instant: datetime) -> int:
    return _milliseconds(instant) // COUNT_PERIOD_MILLISECONDS


def _instant(milliseconds: int) -> datetime:
    return datetime.fromtimestamp(milliseconds / 1000, UTC)


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    _roll_back(database)  # ends a transaction whose rollback failed earlier
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        _roll_back(database)
        raise


def _roll_back(database: sqlite3.Connection) -> None:
    if database.in_transaction:  # some errors, for example a full disk, roll back automatically
        database.execute("ROLLBACK")


def _used_bytes(database: sqlite3.Connection) -> int:
    pages = _scalar(database, "PRAGMA page_count") - _scalar(database, "PRAGMA freelist_count")
    return pages * _scalar(database, "PRAGMA page_size")


def _scalar(database: sqlite3.Connection, statement: str, *parameters: str | int) -> int:
    number: int = database.execute(statement, parameters).fetchone()[0]
    return number
