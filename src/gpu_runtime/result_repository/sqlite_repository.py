"""Results in a file of SQLite: one connection that writes and one that reads, each in a thread of its own.

- Write-ahead log: reads wait for no write, and a commit is one sequential write.
- `synchronous=FULL`: a commit returns when the log is on the disk. That costs one fsync per transaction, which is why
  callers insert many results at once. Without it, a loss of power could take results that were acknowledged.
- Room that deleted results had is used again; the file itself does not shrink.
- Another process may use the same file at the same time: what it locks is waited for.
"""

import sqlite3
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from datetime import UTC, datetime
from pathlib import Path

from gpu_runtime.result_repository.eviction import AT_ONCE, Old, doomed
from gpu_runtime.result_repository.repository import Forgotten, Keeping, Page, Row, Size, Standing
from gpu_runtime.result_repository.sqlite_schema import prepared
from gpu_runtime.result_repository.sqlite_thread import Desk

_INSERT = """
    INSERT INTO results (invocation_id, request_id, state, stored_at, head, body) VALUES (?, ?, ?, ?, ?, ?)
    ON CONFLICT (invocation_id) DO NOTHING"""
_STATE = "SELECT state FROM results WHERE invocation_id = ?"
_GET = "SELECT invocation_id, request_id, state, head, body FROM results WHERE invocation_id = ?"
_PAGE = """
    SELECT number, head FROM results
    WHERE request_id = :request_id AND number < :before AND (:state IS NULL OR state = :state)
    ORDER BY number DESC LIMIT :limit"""
_OLDEST = "SELECT number, stored_at, length(head) + length(body) FROM results ORDER BY number LIMIT ?"
_FORGET = "DELETE FROM results WHERE number <= ?"
# Results go from the old end only, so there are no gaps between the first and the last.
_COUNT = "SELECT coalesce((SELECT max(number) FROM results) - (SELECT min(number) FROM results) + 1, 0)"

_NEWEST = 2**63 - 1


class SQLiteResults:
    """The port, on a file. See `opened`."""

    def __init__(self, writing: Desk, reading: Desk) -> None:
        self._writing, self._reading = writing, reading

    async def insert(self, rows: Sequence[Row], now: datetime) -> list[Standing]:
        return await self._writing.do(lambda database: _insert(database, rows, now))

    async def get(self, invocation_id: str) -> Row | None:
        return await self._reading.do(lambda database: _get(database, invocation_id))

    async def page(self, request_id: str, state: str | None, before: int | None, limit: int) -> Page:
        asked: dict[str, int | str | None] = {
            "request_id": request_id,
            "state": state,
            "before": _NEWEST if before is None else before,
            "limit": limit + 1,
        }
        return await self._reading.do(lambda database: _page(database, asked, limit))

    async def forget(self, keeping: Keeping, now: datetime) -> Forgotten:
        return await self._writing.do(lambda database: _forget(database, keeping, now))

    async def size(self) -> Size:
        return await self._reading.do(lambda database: Size(_one(database, _COUNT), _used(database)))


@asynccontextmanager
async def opened(path: Path) -> AsyncIterator[SQLiteResults]:
    """The results in a file, which is made where there is none. Unfit where it cannot be what is wanted."""
    async with (
        Desk.opened("results-writer", lambda: prepared(path)) as writing,
        Desk.opened("results-reader", lambda: prepared(path)) as reading,
    ):
        yield SQLiteResults(writing, reading)


def _insert(database: sqlite3.Connection, rows: Sequence[Row], now: datetime) -> list[Standing]:
    with _transaction(database):
        return [_inserted(database, row, _milliseconds(now)) for row in rows]


def _inserted(database: sqlite3.Connection, row: Row, stored_at: int) -> Standing:
    values = (row.invocation_id, row.request_id, row.state, stored_at, row.head, row.body)
    if database.execute(_INSERT, values).rowcount:
        return Standing(row.state, new=True)
    (state,) = database.execute(_STATE, (row.invocation_id,)).fetchone()
    return Standing(state, new=False)


def _get(database: sqlite3.Connection, invocation_id: str) -> Row | None:
    found = database.execute(_GET, (invocation_id,)).fetchone()
    return Row(*found) if found else None


def _page(database: sqlite3.Connection, asked: dict[str, int | str | None], limit: int) -> Page:
    found = database.execute(_PAGE, asked).fetchall()
    return Page(tuple(found[:limit]), more=len(found) > limit)


def _forget(database: sqlite3.Connection, keeping: Keeping, now: datetime) -> Forgotten:
    oldest = (
        Old(number, datetime.fromtimestamp(stored_at / 1000, UTC), size)
        for number, stored_at, size in database.execute(_OLDEST, (AT_ONCE,)).fetchall()
    )
    going = doomed(oldest, _used(database), keeping, now)
    if going is None:
        return Forgotten()
    with _transaction(database):
        database.execute(_FORGET, (going.upto,))
    return going.forgotten


@contextmanager
def _transaction(database: sqlite3.Connection) -> Iterator[None]:
    _roll_back(database)  # what could not be rolled back when it failed
    database.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.execute("COMMIT")
    except BaseException:
        _roll_back(database)
        raise


def _roll_back(database: sqlite3.Connection) -> None:
    if database.in_transaction:  # some errors, a full disk among them, end it themselves
        database.execute("ROLLBACK")


def _used(database: sqlite3.Connection) -> int:
    pages = _one(database, "PRAGMA page_count") - _one(database, "PRAGMA freelist_count")
    return pages * _one(database, "PRAGMA page_size")


def _one(database: sqlite3.Connection, question: str) -> int:
    number: int = database.execute(question).fetchone()[0]
    return number


def _milliseconds(moment: datetime) -> int:
    return int(moment.timestamp() * 1000)
